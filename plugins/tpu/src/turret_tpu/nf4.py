"""NF4 weights as XLA programs: packed, unpacked whole, or unpacked some outputs at a time for a product."""

from __future__ import annotations

import functools
import math
from typing import NamedTuple

import numpy as np

from turret.derived.quantized_linear import GROUP, dynamic_levels, linear_levels
from turret.spi import NF4_LEVELS, Host, ScaleCode, Shape

from .arrays import FLOAT32, X, add, choose, div, dot, equal, greater, less, like, mul, rows, sub, wide
from .indexing import gather_rows
from .library import lax
from .programs import program
from .reduction import maximum

CHUNK = 1 << 18  # weights that are unpacked at a time, and stay in the processor's cache
LOWEST = -3e38
HUGE = 2.0**120


def _midpoints(levels: Host) -> Host:
    return ((levels[:-1].astype(np.float64) + levels[1:]) / 2).astype(np.float32)


LEVELS = np.array(NF4_LEVELS, np.float32)
PAIRS = np.stack([np.repeat(LEVELS, 16), np.tile(LEVELS, 16)], axis=1)
MIDPOINTS = _midpoints(LEVELS)
SCALE_LEVELS: dict[ScaleCode, Host] = {"dynamic": dynamic_levels(), "linear": linear_levels()}
SCALE_MIDPOINTS = {code: _midpoints(levels) for code, levels in SCALE_LEVELS.items()}


@program("block")
def pack(weight: X, *, block: int) -> tuple[X, X]:
    """Codes, uint8 (ceil(n/2),), and the largest magnitude of each block, float32 (blocks,)."""
    count = weight.size
    units, scales = _scaled(wide(lax.reshape(weight, (count,))), block)
    below = [lax.convert_element_type(less(float(each), units), "uint8") for each in MIDPOINTS]
    nibbles = lax.reshape(functools.reduce(lax.add, below), (units.size // 2, 2))
    high, low = (lax.squeeze(lax.slice_in_dim(nibbles, i, i + 1, axis=1), (1,)) for i in (0, 1))
    return lax.slice_in_dim(add(mul(high, 16), low), 0, (count + 1) // 2), scales


@program("scale_code")
def pack_scales(scales: X, offset: X, *, scale_code: ScaleCode) -> tuple[X, X]:
    """The nearest level of each scale less the offset, uint8, and the group scales; a tie takes the lower level."""
    units, group_scales = _scaled(sub(scales, offset), GROUP)
    units = lax.slice_in_dim(lax.reshape(units, (units.size,)), 0, scales.size)
    midpoints = SCALE_MIDPOINTS[scale_code]
    level, step = lax.full(units.shape, 0, "int32"), len(midpoints) + 1
    while (step := step // 2) > 0:
        above = less(gather_rows(midpoints, add(level, step - 1)), units)
        level = choose(above, add(level, step), level)
    return lax.convert_element_type(level, "uint8"), group_scales


class Layout(NamedTuple):
    """What is compiled into a program about a packed weight."""

    shape: Shape
    block: int
    scale_code: ScaleCode


class Arrays(NamedTuple):
    """The arrays of a packed weight."""

    codes: X
    scales: X
    group_scales: X | None
    offset: X | None


@program("layout")
def unpack(packed: Arrays, *, layout: Layout) -> X:
    """The float32 weight."""
    values = _values(packed.codes, _scales(packed, layout), math.prod(layout.shape), layout.block)
    return lax.reshape(values, layout.shape)


@program("layout")
def linear(x: X, packed: Arrays, bias: X | None, *, layout: Layout) -> X:
    """(..., I) to (..., O) in the dtype of x; products and sums are float32."""
    operand, chunks = wide(rows(x)), _chunked(packed, layout)

    def product(codes: X, scales: X, outs: int) -> X:
        return dot(_matrix(codes, scales, outs, layout), operand, (((1,), (1,)), ((), ())))

    parts = []
    if chunks.whole is not None:
        of_chunks: X = lax.map(lambda each: product(each[0], each[1], chunks.outs), chunks.whole)
        parts.append(lax.reshape(of_chunks, (of_chunks.shape[0] * chunks.outs, operand.shape[0])))
    if chunks.rest is not None:
        parts.append(product(*chunks.rest, chunks.left))
    y = lax.transpose(lax.concatenate(parts, 0), (1, 0))
    if bias is not None:
        y = add(y, wide(bias))
    return lax.reshape(like(y, x), (*x.shape[:-1], layout.shape[0]))


@program("layout")
def linear_vjp_input(dy: X, packed: Arrays, *, layout: Layout) -> X:
    """(..., O) to (..., I) in the dtype of dy; products and sums are float32."""
    operand, chunks = wide(rows(dy)), _chunked(packed, layout)

    def more(dx: X, each: tuple[X, X, X]) -> tuple[X, None]:
        part, codes, scales = each
        weight = _matrix(codes, scales, part.shape[1], layout)
        return add(dx, dot(part, weight, (((1,), (0,)), ((), ())))), None

    count, done = operand.shape[0], layout.shape[0] - chunks.left
    dx = lax.full((count, layout.shape[1]), 0.0, FLOAT32)
    if chunks.whole is not None:
        parts = lax.reshape(lax.slice_in_dim(operand, 0, done, axis=1), (count, done // chunks.outs, chunks.outs))
        dx, _ = lax.scan(more, dx, (lax.transpose(parts, (1, 0, 2)), *chunks.whole))
    if chunks.rest is not None:
        dx, _ = more(dx, (lax.slice_in_dim(operand, done, layout.shape[0], axis=1), *chunks.rest))
    return lax.reshape(like(dx, dy), (*dy.shape[:-1], layout.shape[1]))


class Chunks(NamedTuple):
    """Codes and scales of all whole chunks of `outs` outputs, stacked, and of the `left` outputs after them."""

    outs: int
    whole: tuple[X, X] | None
    left: int
    rest: tuple[X, X] | None


def _chunked(packed: Arrays, layout: Layout) -> Chunks:
    """Chunks that end where a block ends."""
    (outs, ins), block = layout.shape, layout.block
    least = block // math.gcd(block, ins)
    chunk = least * max(1, CHUNK // (least * ins))
    count = outs // chunk if outs > chunk else 0
    left, arrays = outs - count * chunk, (packed.codes, _scales(packed, layout))
    cuts = count * chunk * ins // 2, count * chunk * ins // block
    whole, rest = None, None
    if count:
        codes, scales = (lax.slice_in_dim(x, 0, cut) for x, cut in zip(arrays, cuts, strict=True))
        whole = _stacked(codes, count), _stacked(scales, count)
    if left:
        codes, scales = (lax.slice_in_dim(x, cut, x.size) for x, cut in zip(arrays, cuts, strict=True))
        rest = codes, scales
    return Chunks(chunk, whole, left, rest)


def _stacked(x: X, count: int) -> X:
    return lax.reshape(x, (count, x.size // count))


def _matrix(codes: X, scales: X, outs: int, layout: Layout) -> X:
    """The weights of `outs` outputs, (outs, I)."""
    ins = layout.shape[1]
    return lax.reshape(_values(codes, scales, outs * ins, layout.block), (outs, ins))


def _values(codes: X, scales: X, count: int, block: int) -> X:
    """float32 (count,): the levels of codes that start with a block, times their scales."""
    pairs = gather_rows(PAIRS, lax.convert_element_type(codes, "int32"))
    return _stretched(lax.slice_in_dim(lax.reshape(pairs, (pairs.size,)), 0, count), scales, block)


def _scales(packed: Arrays, layout: Layout) -> X:
    """The float32 scale of each block."""
    if packed.group_scales is None or packed.offset is None:
        return packed.scales
    levels = gather_rows(SCALE_LEVELS[layout.scale_code], lax.convert_element_type(packed.scales, "int32"))
    # the comparison changes nothing, but product and sum would be rounded only once without it, to other bits
    product = greater(_stretched(levels, packed.group_scales, GROUP), LOWEST)
    scales = add(product, packed.offset)
    return choose(less(scales, 0.0), 0.0, scales) if layout.scale_code == "linear" else scales


def _tiles(values: X, block: int) -> X:
    """(n,) filled up with zeros to (blocks, block)."""
    fill = -values.size % block
    if fill:
        values = lax.pad(values, lax.full((), 0, values.dtype), ((0, fill, 0),))
    return lax.reshape(values, (values.size // block, block))


def _scaled(values: X, block: int) -> tuple[X, X]:
    """(n,) as (blocks, block) within [-1, 1], and the scale of each block."""
    tiles = _tiles(values, block)
    scales = maximum(lax.abs(tiles), axes=(1,), keepdims=False)
    divisors = choose(equal(scales, 0.0), 1.0, scales)
    # XLA multiplies by the reciprocal, which of the largest numbers is subnormal and flushed to zero
    shrink = choose(less(divisors, HUGE), 1.0, lax.full(divisors.shape, 1 / 64, FLOAT32))
    units = mul(tiles, lax.expand_dims(shrink, (1,)))
    return div(units, lax.expand_dims(mul(divisors, shrink), (1,))), scales


def _stretched(values: X, scales: X, block: int) -> X:
    """(n,) times the scale of its block."""
    tiles = _tiles(values, block)
    return lax.slice_in_dim(lax.reshape(mul(tiles, lax.expand_dims(scales, (1,))), (tiles.size,)), 0, values.size)
