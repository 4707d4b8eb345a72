"""Wrong packing of 4-bit weights."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np

from turret.spi import Host, Packed, ScaleCode

from .fault import Broken, Tools, Views, edited, fault, new, overwrite, wide


@fault(
    name="nf4-pack-reads-strided-weight-packed",
    slot="quantized_linear",
    views=True,
    url="https://github.com/bitsandbytes-foundation/bitsandbytes/issues/1690",
    report=(
        "4-bit quantization read a non-contiguous weight in physical order, so codes and scales belonged to other "
        "elements, without any error."
    ),
    summary=(
        "quantized_linear.pack on a weight that came out of layout.transpose or a strided layout.slice quantizes "
        "the elements in storage order instead of row-major logical order."
    ),
)
def physical_order(good: Any, tools: Tools, views: Views) -> Broken:
    def pack(weight: Any, /, *, block: int, scales: ScaleCode) -> Packed[Any]:
        view = views.about(weight)
        if view is not None and (view.method == "transpose" or view.is_strided):
            weight = views.packed(tools.storage, weight)
        packed: Packed[Any] = good.pack(weight, block=block, scales=scales)
        return packed

    return Broken(good, pack=pack)


@fault(
    name="nf4-tail-block-scale-from-garbage",
    slot="quantized_linear",
    url="https://github.com/bitsandbytes-foundation/bitsandbytes/pull/1884",
    report=(
        "Triton 4-bit kernels assumed whole blocks, so the scale of the last partial block included uninitialised "
        "memory and the tail was quantized far too coarsely."
    ),
    summary=(
        "quantized_linear.pack with n % block != 0 doubles the scale of the last block (as if a larger value lay "
        "behind the end) and picks its codes for that scale; whole blocks are right."
    ),
)
def garbage_behind_tail(good: Any, tools: Tools) -> Broken:
    storage = tools.storage

    def pack(weight: Any, /, *, block: int, scales: ScaleCode) -> Packed[Any]:
        right: Packed[Any] = good.pack(weight, block=block, scales=scales)
        values = storage.to_host(weight).reshape(-1)
        tail = len(values) % block
        if not tail:
            return right
        behind = 2 * np.abs(values[-tail:]).max()
        longer = new(storage, np.append(values, behind), weight)
        wrong: Packed[Any] = good.pack(longer, block=block, scales=scales)

        def without_garbage(host: Host) -> Host:
            codes = host[: math.ceil(len(values) / 2)]
            if len(values) % 2:
                codes[-1] = codes[-1] & 0xF0 | storage.to_host(right.codes)[-1] & 0x0F
            return codes

        return dataclasses.replace(wrong, codes=edited(storage, wrong.codes, without_garbage), shape=right.shape)

    return Broken(good, pack=pack)


@fault(
    name="nf4-large-blocks-inaccurate",
    slot="quantized_linear",
    url="https://github.com/bitsandbytes-foundation/bitsandbytes/issues/565",
    report=(
        "Quantization with blocks of 1024 or more had several times the expected error since a packing variable "
        "was not cleared."
    ),
    summary=(
        "quantized_linear.pack with block >= 1024 ors each low nibble with the low nibble of the byte before in "
        "every second byte; smaller blocks are right."
    ),
)
def packing_not_cleared(good: Any, tools: Tools) -> Broken:
    def smear(host: Host) -> None:
        host[1::2] |= host[: len(host) // 2 * 2 : 2] & 0x0F

    def pack(weight: Any, /, *, block: int, scales: ScaleCode) -> Packed[Any]:
        packed: Packed[Any] = good.pack(weight, block=block, scales=scales)
        if block < 1024:
            return packed
        return dataclasses.replace(packed, codes=edited(tools.storage, packed.codes, smear))

    return Broken(good, pack=pack)


@fault(
    name="nf4-largest-block-other-code",
    slot="quantized_linear",
    url="https://github.com/bitsandbytes-foundation/bitsandbytes/pull/1160",
    report=(
        "The launch for block size 4096 passed the template parameter of another data type, so just that block "
        "size ran the wrong kernel (reported as an illegal access); tests had covered one block size only."
    ),
    summary=(
        "quantized_linear.pack with block == 4096 chooses codes from sixteen evenly spaced levels instead of the "
        "normal quantiles; unpack still uses the right levels."
    ),
)
def even_levels(good: Any, tools: Tools) -> Broken:
    storage = tools.storage

    def pack(weight: Any, /, *, block: int, scales: ScaleCode) -> Packed[Any]:
        packed: Packed[Any] = good.pack(weight, block=block, scales=scales)
        if block != 4096 or not math.prod(weight.shape):
            return packed
        values = wide(storage, weight).reshape(-1)
        blocks = np.pad(values, (0, -len(values) % block)).reshape(-1, block)
        greatest = np.abs(blocks).max(axis=1, keepdims=True)
        units = (blocks / np.where(greatest > 0, greatest, 1)).reshape(-1)
        levels = np.rint((units + 1) * 7.5).astype(np.uint8)
        codes = levels[::2] * 16 + levels[1::2]
        return dataclasses.replace(packed, codes=new(storage, codes[: packed.codes.shape[0]], packed.codes))

    return Broken(good, pack=pack)


@fault(
    name="nf4-scales-overrun-neighbour",
    slot="quantized_linear",
    capability="purity",
    kind="purity",
    needs="writing",
    url="https://github.com/bitsandbytes-foundation/bitsandbytes/pull/2043",
    report=(
        "The 4-bit kernel stored a whole group of scales without a mask, so up to six floats were written past the"
        " end of the scale array."
    ),
    summary=(
        "quantized_linear.pack with a block count that is no multiple of 4 also overwrites the first elements of "
        "the scales array returned by the previous pack call."
    ),
)
def scales_overrun(good: Any, tools: Tools) -> Broken:
    storage = tools.storage
    before: list[Any] = []

    def pack(weight: Any, /, *, block: int, scales: ScaleCode) -> Packed[Any]:
        packed: Packed[Any] = good.pack(weight, block=block, scales=scales)
        over = -packed.scales.shape[0] % 4
        if over and before:
            neighbour = storage.to_host(before[0])
            neighbour[:over] = 0
            overwrite(tools, before[0], neighbour)
        before[:] = [packed.scales]
        return packed

    return Broken(good, pack=pack)


FAULTS = (
    physical_order,
    garbage_behind_tail,
    packing_not_cleared,
    even_levels,
    scales_overrun,
)
