"""NF4 weights without bit operations: a byte is an index into a table of 256 pairs of levels."""

from __future__ import annotations

import math
from typing import Generic

import numpy as np

from turret.spi import NF4_LEVELS, A, Host, Packed, Required, ScaleCode

from .linear import DerivedLinear
from .ops import Ops

GROUP = 256  # block scales that share one scale of their own


def dynamic_levels() -> Host:
    """The 256 levels of a "dynamic" scale, float32, ascending from -0.99296874 to 1 with 0 at index 127.

    For each decade 10^(i-6), i = 0..6: the midpoints of 2^i equal parts of [0.1, 1], with both signs; then 0 and 1. All
    of it in float32, with edges counted from the nearer end, so that the bits are those of the tables in checkpoints.
    Source: Dettmers 2016, section 2.2 (dynamic tree quantization).
    """
    one, tenth = np.float32(1), np.float32(0.1)
    levels = [0.0, 1.0]
    for i in range(7):
        parts, place = 2**i, np.arange(2**i + 1)
        step = float((one - tenth) / np.float32(parts))
        low, high = float(tenth) + step * place, 1 - step * (parts - place)
        edges = np.where(place < (parts + 1) // 2, low, high).astype(np.float32)
        middles = (edges[:-1] + edges[1:]) / np.float32(2) * np.float32(10.0 ** (i - 6))
        levels += [*middles.tolist(), *(-middles).tolist()]
    return np.sort(np.array(levels, np.float32))


def linear_levels() -> Host:
    """The 256 levels of a "linear" scale, float32: (q - 128) / 127. The lowest lies beyond -1 and is never nearest."""
    return ((np.arange(256) - 128) / 127).astype(np.float32)


class DerivedQuantizedLinear(Generic[A]):
    """The layout of `Packed`, bit for bit; the weight is unpacked whole at every use.

    A level is found by halving the list of midpoints, four steps for 16 levels and eight for 256; a value on a midpoint
    takes the lower level. A block of zeros has the scale 0 and unpacks to zeros.
    """

    def __init__(self, required: Required[A]) -> None:
        self._ops, self._linear = Ops(required), DerivedLinear(required)
        levels = np.array(NF4_LEVELS, np.float32)
        put = required.storage.from_host  # at opening: inside a trace a constant made lazily would leak
        self._pairs = put(np.stack([np.repeat(levels, 16), np.tile(levels, 16)], axis=1))
        self._midpoints = put(_midpoints(levels))
        made: dict[ScaleCode, Host] = {"dynamic": dynamic_levels(), "linear": linear_levels()}
        self._scale_levels = {code: (put(each), put(_midpoints(each))) for code, each in made.items()}

    def pack(self, weight: A, /, *, block: int, scales: ScaleCode) -> Packed[A]:
        o, count = self._ops, math.prod(weight.shape)
        units, largest = self._scaled(o.flat(o.cast(weight, "float32")), block)
        nibbles = o.reshape(self._nearest(units, self._midpoints), (units.shape[0] // 2, 2))
        high, low = (o.reshape(o.cut(nibbles, 1, i, i + 1), (units.shape[0] // 2,)) for i in (0, 1))
        codes = o.cast(o.add(o.multiply(high, 16), low), "uint8")
        codes = o.cut(codes, 0, 0, (count + 1) // 2)
        if scales == "float32":
            return Packed(codes, largest, None, None, weight.shape, block, scales)
        offset = o.mean(largest, axis=0)
        units, group_scales = self._scaled(o.subtract(largest, offset), GROUP)
        _, midpoints = self._scale_levels[scales]
        scale_codes = o.cut(o.cast(self._nearest(units, midpoints), "uint8"), 0, 0, largest.shape[0])
        return Packed(codes, scale_codes, group_scales, offset, weight.shape, block, scales)

    def unpack(self, packed: Packed[A], /) -> A:
        o, scales = self._ops, packed.scales
        if packed.group_scales is not None and packed.offset is not None:
            levels = o.gather_rows(self._scale_levels[packed.scale_code][0], o.cast(scales, "int32"))
            scales = o.add(self._stretched(levels, packed.group_scales, GROUP), packed.offset)
            if packed.scale_code == "linear":
                scales = o.where(o.less(scales, 0.0), 0.0, scales)
        pairs = o.gather_rows(self._pairs, o.cast(packed.codes, "int32"))
        values = o.cut(o.flat(pairs), 0, 0, math.prod(packed.shape))
        return o.reshape(self._stretched(values, scales, packed.block), packed.shape)

    def linear(self, x: A, packed: Packed[A], bias: A | None, /) -> A:
        o, wide = self._ops, self._ops.wide(x)
        weight = o.like(self.unpack(packed), wide)  # float32 under halves: a level rounded to a half is another level
        return o.like(self._linear.linear(wide, weight, None if bias is None else o.wide(bias)), x)

    def linear_vjp_input(self, dy: A, packed: Packed[A], /) -> A:
        o, wide = self._ops, self._ops.wide(dy)
        return o.like(self._linear.linear_vjp_input(wide, o.like(self.unpack(packed), wide)), dy)

    def _tiles(self, values: A, block: int) -> A:
        """(n,) padded with zeros to (blocks, block)."""
        o, count = self._ops, values.shape[0]
        blocks = -(-count // block)
        return o.reshape(o.pad(values, [(0, blocks * block - count)]), (blocks, block))

    def _scaled(self, values: A, block: int) -> tuple[A, A]:
        """(n,) to values within [-1, 1], padded to whole blocks and flat, and the scale of each block."""
        o, tiles = self._ops, self._tiles(values, block)
        scales = o.max(o.magnitude(tiles), axis=1)
        divisors = o.where(o.equal(scales, 0.0), 1.0, scales)
        return o.flat(o.divide(tiles, o.reshape(divisors, (tiles.shape[0], 1)))), scales

    def _stretched(self, values: A, scales: A, block: int) -> A:
        """(n,) times the scale of its block."""
        o, tiles = self._ops, self._tiles(values, block)
        return o.cut(o.flat(o.multiply(tiles, o.reshape(scales, (tiles.shape[0], 1)))), 0, 0, values.shape[0])

    def _nearest(self, units: A, midpoints: A) -> A:
        """int32: how many midpoints lie below each value, by halving; their number is 2^steps - 1."""
        o, step = self._ops, midpoints.shape[0] + 1
        level = o.full(units.shape, 0, dtype="int32")
        while (step := step // 2) > 0:
            above = o.less(o.gather_rows(midpoints, o.add(level, step - 1)), units)
            level = o.where(above, o.add(level, step), level)
        return level


def _midpoints(levels: Host) -> Host:
    return ((levels[:-1].astype(np.float64) + levels[1:]) / 2).astype(np.float32)
