"""Wrong packing of 4-bit weights."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np

from turret.spi import Host, Packed

from .fault import Broken, Tools, Views, edited, fault, new


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
    def pack(weight: Any, /, *, block: int, double: bool) -> Packed[Any]:
        view = views.about(weight)
        if view is not None and (view.method == "transpose" or view.is_strided):
            weight = views.packed(tools.storage, weight)
        packed: Packed[Any] = good.pack(weight, block=block, double=double)
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

    def pack(weight: Any, /, *, block: int, double: bool) -> Packed[Any]:
        right: Packed[Any] = good.pack(weight, block=block, double=double)
        values = storage.to_host(weight).reshape(-1)
        tail = len(values) % block
        if not tail:
            return right
        behind = 2 * np.abs(values[-tail:]).max()
        longer = new(storage, np.append(values, behind), weight)
        wrong: Packed[Any] = good.pack(longer, block=block, double=double)

        def without_garbage(host: Host) -> Host:
            codes = host[: math.ceil(len(values) / 2)]
            if len(values) % 2:
                codes[-1] = codes[-1] & 0xF0 | storage.to_host(right.codes)[-1] & 0x0F
            return codes

        return dataclasses.replace(wrong, codes=edited(storage, wrong.codes, without_garbage), shape=right.shape)

    return Broken(good, pack=pack)


FAULTS = (physical_order, garbage_behind_tail)
