"""The slot of 4-bit NormalFloat weights."""

from __future__ import annotations

from collections import Counter

from turret.derived.quantized_linear import DerivedQuantizedLinear
from turret.spi import Packed, Required, ScaleCode

from . import nf4
from .arrays import X
from .place import Place
from .reduction import mean


class TpuQuantizedLinear:
    """A product unpacks the weights of some outputs at a time, and never more than one weight.

    Packed bytes and unpacked values are those of `turret.derived`, bit for bit. Halves are computed in float32. A
    weight without elements is the composed slot's, and counted.
    """

    def __init__(self, place: Place, required: Required[X], calls: Counter[str]) -> None:
        self._place, self._derived, self._calls = place, DerivedQuantizedLinear(required), calls

    def pack(self, weight: X, /, *, block: int, scales: ScaleCode) -> Packed[X]:
        if not weight.size:
            return self._rest().pack(weight, block=block, scales=scales)
        codes, largest = self._place.run(nf4.pack, weight, block=block)
        if scales == "float32":
            return Packed(codes, largest, None, None, weight.shape, block, scales)
        offset = self._place.run(mean, largest, axes=(0,), keepdims=False)
        scale_codes, group_scales = self._place.run(nf4.pack_scales, largest, offset, scale_code=scales)
        return Packed(codes, scale_codes, group_scales, offset, weight.shape, block, scales)

    def unpack(self, packed: Packed[X], /) -> X:
        if not packed.codes.size:
            return self._rest().unpack(packed)
        return self._place.run(nf4.unpack, _arrays(packed), layout=_layout(packed))

    def linear(self, x: X, packed: Packed[X], bias: X | None, /) -> X:
        if not packed.codes.size:
            return self._rest().linear(x, packed, bias)
        return self._place.run(nf4.linear, x, _arrays(packed), bias, layout=_layout(packed))

    def linear_vjp_input(self, dy: X, packed: Packed[X], /) -> X:
        if not packed.codes.size:
            return self._rest().linear_vjp_input(dy, packed)
        return self._place.run(nf4.linear_vjp_input, dy, _arrays(packed), layout=_layout(packed))

    def _rest(self) -> DerivedQuantizedLinear[X]:
        self._calls["quantized_linear"] += 1
        return self._derived


def _arrays(packed: Packed[X]) -> nf4.Arrays:
    return nf4.Arrays(packed.codes, packed.scales, packed.group_scales, packed.offset)


def _layout(packed: Packed[X]) -> nf4.Layout:
    return nf4.Layout(tuple(packed.shape), packed.block, packed.scale_code)
