"""NF4 codes and block scales of flat ranges of weights, coded and decoded with MLX operations."""

from __future__ import annotations

import mlx.core as mx
import numpy as np

from turret.derived.quantized_linear import GROUP, dynamic_levels, linear_levels
from turret.spi import NF4_LEVELS, Host, Packed, ScaleCode

from .arrays import fold
from .layout import cut
from .stream import Stream, X


class Tables:
    """The levels as arrays of one device, made when it is opened: inside a trace a constant made lazily would leak."""

    def __init__(self, do: Stream) -> None:
        levels = np.array(NF4_LEVELS, np.float32)
        pairs = np.stack([np.repeat(levels, 16), np.tile(levels, 16)], axis=1)
        # two float32 as one number of 64 bits: MLX's CPU device gathers rows of two at a third of the speed
        self.pairs = mx.array(pairs.view(np.int64).reshape(256))
        self.middles = mx.array(_middles(levels))
        coded: dict[ScaleCode, Host] = {"dynamic": dynamic_levels(), "linear": linear_levels()}
        self.scales = {code: (mx.array(each), mx.array(_middles(each))) for code, each in coded.items()}
        do.wait(self.pairs, self.middles, *(x for both in self.scales.values() for x in both))


def encode(do: Stream, tables: Tables, values: X, block: int) -> tuple[X, X]:
    """(n,) float32 to uint8 (ceil(n / 2),), the first of two in the high nibble, and the scales (ceil(n / block),)."""
    units, scales = _scaled(do, values, block)
    nibbles = do(mx.reshape, do(mx.astype, _nearest(do, units, tables.middles), mx.uint8), (-1, 2))
    high, low = (do(mx.reshape, cut(do, nibbles, 1, i, i + 1), (-1,)) for i in (0, 1))
    codes = do(mx.add, do(mx.multiply, high, 16), low)
    return cut(do, codes, 0, 0, (values.size + 1) // 2), scales


def encode_scales(do: Stream, tables: Tables, centred: X, code: ScaleCode) -> tuple[X, X]:
    """Scales less their mean, (blocks,), to uint8 of that shape, and the scale of each group."""
    units, groups = _scaled(do, centred, GROUP)
    codes = do(mx.astype, _nearest(do, units, tables.scales[code][1]), mx.uint8)
    return cut(do, codes, 0, 0, centred.size), groups


def decode_scales(do: Stream, tables: Tables, packed: Packed[X]) -> X:
    """The float32 scale of each block."""
    if packed.group_scales is None or packed.offset is None:
        return packed.scales
    levels = do(mx.take, tables.scales[packed.scale_code][0], packed.scales)
    scales = do(mx.add, _stretched(do, levels, packed.group_scales, GROUP), packed.offset)
    if packed.scale_code == "linear":
        scales = do(mx.where, do(mx.less, scales, 0.0), 0.0, scales)
    return scales


def decode(do: Stream, tables: Tables, codes: X, scales: X, block: int, count: int) -> X:
    """The first `count` weights, (count,) float32, of codes whose first value is the first of a block."""
    values = do(mx.view, do(mx.take, tables.pairs, codes), mx.float32)
    return _stretched(do, cut(do, values, 0, 0, count), scales, block)


def _scaled(do: Stream, values: X, block: int) -> tuple[X, X]:
    """Values within [-1, 1], flat, with zeros up to whole blocks, and the scale of each block."""
    tiles = _tiles(do, values, block)
    scales = fold(do, mx.max, do(mx.abs, tiles), axis=1)
    divisors = do(mx.where, do(mx.equal, scales, 0.0), 1.0, scales)
    return do(mx.reshape, do(mx.divide, tiles, do(mx.expand_dims, divisors, 1)), (-1,)), scales


def _nearest(do: Stream, units: X, middles: X) -> X:
    """How many of the middles between two levels lie below each value: one on a middle takes the lower level."""
    return do(mx.searchsorted, middles, units)


def _stretched(do: Stream, values: X, scales: X, block: int) -> X:
    """(n,) times the scale of its block."""
    tiles = do(mx.multiply, _tiles(do, values, block), do(mx.expand_dims, scales, 1))
    return cut(do, do(mx.reshape, tiles, (-1,)), 0, 0, values.size)


def _tiles(do: Stream, values: X, block: int) -> X:
    """(n,) with zeros up to whole blocks: (blocks, block)."""
    blocks = -(-values.size // block)
    if values.size % block:
        values = do(mx.pad, values, [(0, blocks * block - values.size)])
    return do(mx.reshape, values, (blocks, block))


def _middles(levels: Host) -> Host:
    return ((levels[:-1].astype(np.float64) + levels[1:]) / 2).astype(np.float32)
