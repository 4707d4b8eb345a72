"""Wrong coding of the block scales of 4-bit weights, and wrong reading of packed weights."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np

from turret.spi import Host, Packed, ScaleCode

from ..oracle import nf4 as oracle
from .fault import Broken, Tools, edited, fault, new, wide

OTHER: dict[ScaleCode, ScaleCode] = {"float32": "float32", "dynamic": "linear", "linear": "dynamic"}
Change = Callable[[Packed[Any]], Packed[Any]]


def _reading(good: Any, change: Change, **methods: Callable[..., Any]) -> Broken:
    """A slot that takes every packed weight for a changed one."""
    return Broken(
        good,
        unpack=lambda packed: good.unpack(change(packed)),
        linear=lambda x, packed, bias: good.linear(x, change(packed), bias),
        linear_vjp_input=lambda dy, packed: good.linear_vjp_input(dy, change(packed)),
        **methods,
    )


@fault(
    name="nf4-linear-scale-not-clamped",
    slot="quantized_linear",
    url="https://github.com/Xilinx/brevitas/pull/1308",
    report=(
        "Scales were taken to be positive in the whole of a quantization library, which had to be gone through once "
        "they could come out negative."
    ),
    summary=(
        "quantized_linear reads a linear scale whose level times the group's scale is below -offset as a negative "
        "number instead of 0, which turns the signs of the block; all other scales are right."
    ),
)
def not_clamped(good: Any, tools: Tools) -> Broken:
    storage = tools.storage

    def plain(packed: Packed[Any]) -> Packed[Any]:
        if packed.scale_code != "linear" or packed.group_scales is None or packed.offset is None:
            return packed
        coded = oracle.SCALE_LEVELS["linear"][storage.to_host(packed.scales)]
        tops = np.repeat(storage.to_host(packed.group_scales), oracle.GROUP)[: coded.size]
        scales = new(storage, coded * tops + storage.to_host(packed.offset), packed.group_scales)
        return dataclasses.replace(packed, scales=scales, group_scales=None, offset=None, scale_code="float32")

    return _reading(good, plain)


@fault(
    name="nf4-scale-tables-exchanged",
    slot="quantized_linear",
    url="https://github.com/JustVugg/colibri/pull/298",
    report=(
        "When scales got a second meaning, the kernel of the plain product was taught it, and those of attention "
        "went on reading every scale in the old way."
    ),
    summary=(
        "quantized_linear uses the table of dynamic scales for linear ones and the other way round, when it packs "
        "and when it reads, so that what it packed itself comes back right."
    ),
)
def exchanged(good: Any, tools: Tools) -> Broken:
    def pack(weight: Any, /, *, block: int, scales: ScaleCode) -> Packed[Any]:
        packed: Packed[Any] = good.pack(weight, block=block, scales=OTHER[scales])
        return dataclasses.replace(packed, scale_code=scales)

    return _reading(good, lambda packed: dataclasses.replace(packed, scale_code=OTHER[packed.scale_code]), pack=pack)


@fault(
    name="nf4-scale-code-ignored-on-pack",
    slot="quantized_linear",
    url="https://github.com/bitsandbytes-foundation/bitsandbytes/pull/868",
    report=(
        "Weights without nested scales could not be stored and loaded; the tests of it had not passed the setting "
        "on, so that they tested one of its two values twice."
    ),
    summary="quantized_linear.pack codes linear scales on the dynamic map and calls them linear; reading is right.",
)
def ignored(good: Any, tools: Tools) -> Broken:
    def pack(weight: Any, /, *, block: int, scales: ScaleCode) -> Packed[Any]:
        packed: Packed[Any] = good.pack(weight, block=block, scales="float32" if scales == "float32" else "dynamic")
        return dataclasses.replace(packed, scale_code=scales)

    return Broken(good, pack=pack)


@fault(
    name="nf4-scales-rounded-down",
    slot="quantized_linear",
    url="https://github.com/bitsandbytes-foundation/bitsandbytes/pull/1582",
    report=(
        "On CPU and XPU the nested scales were coded with the next level below instead of the nearest, unlike on "
        "CUDA, and were less precise."
    ),
    summary="quantized_linear.pack codes a scale with the greatest level that is not above it; plain scales are right.",
)
def rounded_down(good: Any, tools: Tools) -> Broken:
    storage = tools.storage

    def pack(weight: Any, /, *, block: int, scales: ScaleCode) -> Packed[Any]:
        packed: Packed[Any] = good.pack(weight, block=block, scales=scales)
        if packed.group_scales is None or packed.offset is None:
            return packed
        plain = wide(storage, good.pack(weight, block=block, scales="float32").scales)
        tops = np.repeat(wide(storage, packed.group_scales), oracle.GROUP)[: plain.size]
        units = (plain - wide(storage, packed.offset)) / np.where(tops > 0, tops, 1)
        below = np.searchsorted(oracle.SCALE_LEVELS[scales], units, side="right") - 1
        return dataclasses.replace(packed, scales=new(storage, np.maximum(below, 0), packed.scales))

    return Broken(good, pack=pack)


@fault(
    name="nf4-groups-of-255-scales",
    slot="quantized_linear",
    url="https://github.com/deepspeedai/DeepSpeed/pull/3433",
    report=(
        "The size of a quantization group was worked out from other sizes in a way that made groups overlap for some "
        "of them, and parts of a weight were scaled by a neighbour's factor."
    ),
    summary="quantized_linear reads scale i with the group scale i // 255; right for the first 255 blocks.",
)
def short_groups(good: Any, tools: Tools) -> Broken:
    return _reading(good, lambda packed: _regrouped(tools, packed, lambda i, count: np.minimum(i // 255, count - 1)))


@fault(
    name="nf4-every-group-reads-the-first",
    slot="quantized_linear",
    url="https://github.com/ROCm/rocm-libraries/pull/10474",
    report=(
        "In one mode the offset into the table of scales lacked the term of the group, so that every group used the "
        "scales of the first."
    ),
    summary="quantized_linear reads every scale with the first group's scale; right for up to 256 blocks.",
)
def first_group(good: Any, tools: Tools) -> Broken:
    return _reading(good, lambda packed: _regrouped(tools, packed, lambda i, count: 0 * i))


def _regrouped(tools: Tools, packed: Packed[Any], group_of: Callable[[Host, int], Host]) -> Packed[Any]:
    """Float32 scales that come of wrong group scales."""
    if packed.group_scales is None or packed.offset is None or packed.scales.shape[0] < oracle.GROUP:
        return packed
    storage = tools.storage
    codes, tops = storage.to_host(packed.scales), storage.to_host(packed.group_scales)
    spread = tops[group_of(np.arange(codes.size), tops.size)]
    scales = oracle.SCALE_LEVELS[packed.scale_code][codes] * spread + storage.to_host(packed.offset)
    if packed.scale_code == "linear":
        scales = np.maximum(scales, 0)
    plain = new(storage, scales, packed.group_scales)
    return dataclasses.replace(packed, scales=plain, group_scales=None, offset=None, scale_code="float32")


@fault(
    name="nf4-low-nibble-first",
    slot="quantized_linear",
    url="https://github.com/amd/Quark/pull/30",
    report=(
        "4-bit weights were packed in one order of nibbles and labelled with another: files loaded without a "
        "complaint, and models talked nonsense."
    ),
    summary=(
        "quantized_linear has the first value of a byte in its low nibble, when it packs and when it reads, so that "
        "what it packed itself comes back right."
    ),
)
def low_first(good: Any, tools: Tools) -> Broken:
    def turned(packed: Packed[Any]) -> Packed[Any]:
        codes = edited(tools.storage, packed.codes, lambda host: host << 4 | host >> 4)
        return dataclasses.replace(packed, codes=codes)

    def pack(weight: Any, /, *, block: int, scales: ScaleCode) -> Packed[Any]:
        return turned(good.pack(weight, block=block, scales=scales))

    return _reading(good, turned, pack=pack)


@fault(
    name="nf4-odd-last-value-from-low-nibble",
    slot="quantized_linear",
    url="https://github.com/InfiniTensor/Learning-CUDA/pull/41",
    report=(
        "A kernel that unpacks 4-bit weights counted bytes instead of values at the end, which went wrong for an odd "
        "number of values."
    ),
    summary="quantized_linear reads the last of an odd number of values from the low nibble; even numbers are right.",
)
def odd_last(good: Any, tools: Tools) -> Broken:
    def low(host: Host) -> None:
        host[-1] = (host[-1] & 0x0F) * 0x11

    def change(packed: Packed[Any]) -> Packed[Any]:
        if not np.prod(packed.shape) % 2:
            return packed
        return dataclasses.replace(packed, codes=edited(tools.storage, packed.codes, low))

    return _reading(good, change)


@fault(
    name="nf4-gradient-with-weight-not-transposed",
    slot="quantized_linear",
    kind="vjp",
    url="https://github.com/nntile/nntile/pull/433",
    report=(
        "For some memory layouts the backward of a linear layer multiplied the gradient with the wrong axis of the "
        "weight; shapes fit only where inputs and outputs are equally many, and there the result was wrong."
    ),
    summary="quantized_linear.linear_vjp_input of a square weight gives dy @ weight^T; other weights are right.",
)
def not_transposed(good: Any, tools: Tools) -> Broken:
    def linear_vjp_input(dy: Any, packed: Packed[Any], /) -> Any:
        if packed.shape[0] == packed.shape[1]:
            return good.linear(dy, packed, None)
        return good.linear_vjp_input(dy, packed)

    return Broken(good, linear_vjp_input=linear_vjp_input)


FAULTS = (
    not_clamped,
    exchanged,
    ignored,
    rounded_down,
    short_groups,
    first_group,
    low_first,
    odd_last,
    not_transposed,
)
