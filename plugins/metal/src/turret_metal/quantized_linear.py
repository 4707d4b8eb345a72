"""The slot of 4-bit NormalFloat weights: unpacked in blocks of output rows, one after the other."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import get_args

import mlx.core as mx

from turret.derived.quantized_linear import GROUP
from turret.spi import DTypeError, Packed, ScaleCode, ShapeError, Unsupported

from . import nf4
from .arrays import like, native, wide
from .layout import cut
from .products import times_transposed
from .reduction import MetalReduction
from .stream import Stream, X

BLOCKS = tuple(1 << shift for shift in range(5, 13))
FEWEST = 1 << 16  # weights of a block of rows, but for small matrices
QUEUED = 32  # MLX has the work, and the memory, of up to so many blocks in its queue: together about one weight


class MetalQuantizedLinear:
    """No weight is unpacked before its input is there, nor more of it than a block of rows and what MLX has queued.

    Packed bytes and unpacked values are those of `turret.derived`, bit for bit. Halves are computed in float32.
    """

    def __init__(self, do: Stream) -> None:
        self._do, self._tables, self._mean = do, nf4.Tables(do), MetalReduction(do).mean

    def pack(self, weight: X, /, *, block: int, scales: ScaleCode) -> Packed[X]:
        do, shape = self._do, tuple(weight.shape)
        _check_block(block)
        _check_code(scales)
        flat, parts = do(mx.reshape, do(mx.astype, weight, mx.float32), (-1,)), list[tuple[X, X]]()
        step = -(-_at_once(flat.size) // BLOCKS[-1]) * BLOCKS[-1]
        for start in range(0, max(flat.size, 1), step):
            values = do.after(cut(do, flat, 0, start, min(start + step, flat.size)), *(parts[-1] if parts else ()))
            parts.append(nf4.encode(do, self._tables, values, block))
        codes, largest = (do(mx.concatenate, list(each)) for each in zip(*parts, strict=True))
        if scales == "float32":
            return Packed(codes, largest, None, None, shape, block, scales)
        offset = self._mean(largest, axis=0)
        scale_codes, groups = nf4.encode_scales(do, self._tables, do(mx.subtract, largest, offset), scales)
        return Packed(codes, scale_codes, groups, offset, shape, block, scales)

    def unpack(self, packed: Packed[X], /) -> X:
        _check(packed)
        scales = nf4.decode_scales(self._do, self._tables, packed)
        count = math.prod(packed.shape)
        whole = nf4.decode(self._do, self._tables, packed.codes, scales, packed.block, count)
        return self._do(mx.reshape, whole, packed.shape)

    def linear(self, x: X, packed: Packed[X], bias: X | None, /) -> X:
        do, (outs, ins) = self._do, _matrix(packed, "x", x, 1)
        rows = do(mx.reshape, wide(do, x), (math.prod(x.shape[:-1]), ins))
        scales, ys = nf4.decode_scales(do, self._tables, packed), list[X]()
        for start, stop in _blocks(packed):
            weight = self._rows(packed, scales, start, stop, rows, *ys[-1:])
            ys.append(times_transposed(do, rows, weight))
        y = do(mx.concatenate, ys, axis=1) if ys else do(mx.zeros, (rows.shape[0], outs))
        if bias is not None:
            y = do(mx.add, y, wide(do, bias))
        return like(do, do(mx.reshape, y, (*x.shape[:-1], outs)), x)

    def linear_vjp_input(self, dy: X, packed: Packed[X], /) -> X:
        do, (outs, ins) = self._do, _matrix(packed, "dy", dy, 0)
        rows = do(mx.reshape, wide(do, dy), (math.prod(dy.shape[:-1]), outs))
        scales, dx = nf4.decode_scales(do, self._tables, packed), None
        for start, stop in _blocks(packed):
            weight = self._rows(packed, scales, start, stop, rows if dx is None else dx)
            part = do(mx.matmul, cut(do, rows, 1, start, stop), weight)
            dx = part if dx is None else do(mx.add, dx, part)
        if dx is None:
            dx = do(mx.zeros, (rows.shape[0], ins))
        return like(do, do(mx.reshape, dx, (*dy.shape[:-1], ins)), dy)

    def _rows(self, packed: Packed[X], scales: X, start: int, stop: int, *before: X) -> X:
        """Output rows start..stop of the weight, float32, unpacked when `before` is computed."""
        do, (_, ins), block = self._do, packed.shape, packed.block
        first, last = start * ins, stop * ins
        codes = do.after(cut(do, packed.codes, 0, first // 2, (last + 1) // 2), *before)
        scales = cut(do, scales, 0, first // block, -(-last // block))
        return do(mx.reshape, nf4.decode(do, self._tables, codes, scales, block, last - first), (stop - start, ins))


def _blocks(packed: Packed[X]) -> Iterator[tuple[int, int]]:
    """First and last output row of each block of rows, which begins where a block of scales does."""
    outs, ins = packed.shape
    if not outs * ins:
        return
    whole = packed.block // math.gcd(packed.block, ins)
    step = max(1, _at_once(outs * ins) // (ins * whole)) * whole
    for start in range(0, outs, step):
        yield start, min(start + step, outs)


def _at_once(count: int) -> int:
    return max(FEWEST, count // QUEUED)


def _matrix(packed: Packed[X], name: str, x: X, axis: int) -> tuple[int, int]:
    """The sizes of a packed matrix that x, by its last axis, fits. Raises: ShapeError, DTypeError, Unsupported."""
    _check(packed)
    if len(packed.shape) != 2:
        raise ShapeError(f"a packed weight {packed.shape}; wanted (O, I): unpack it, or pack it as a matrix")
    outs, ins = packed.shape
    if x.shape[-1:] != (packed.shape[axis],):
        raise ShapeError(
            f"{name} {x.shape} for a packed weight {packed.shape}; wanted {name} (..., {packed.shape[axis]})"
        )
    return outs, ins


def _check(packed: Packed[X]) -> None:
    """Raises: ShapeError, DTypeError, Unsupported where its parts do not fit each other: MLX would read elsewhere."""
    _check_block(packed.block)
    blocks = -(-math.prod(packed.shape) // packed.block)
    _check_code(packed.scale_code)
    coded = packed.scale_code != "float32"
    wanted: list[tuple[str, X | None, str, tuple[int, ...]]] = [
        ("codes", packed.codes, "uint8", (-(-math.prod(packed.shape) // 2),)),
        ("scales", packed.scales, "uint8" if coded else "float32", (blocks,)),
    ]
    if coded:
        wanted.append(("group_scales", packed.group_scales, "float32", (-(-blocks // GROUP),)))
        wanted.append(("offset", packed.offset, "float32", ()))
    elif packed.group_scales is not None or packed.offset is not None:
        raise ShapeError("a packed weight with float32 scales has neither group_scales nor offset; got some")
    for name, part, dtype, shape in wanted:
        if part is None:
            raise ShapeError(f"a packed weight with {packed.scale_code} scales and no {name}; load all its parts")
        if part.dtype != native(dtype):
            raise DTypeError(f"{name} of a packed weight are {part.dtype}; wanted {dtype}")
        if part.shape != shape:
            raise ShapeError(
                f"{name} {part.shape} of a weight {packed.shape} in blocks of {packed.block}; wanted {shape}: "
                f"pack it again, or load all parts from one file"
            )


def _check_block(block: int) -> None:
    if block not in BLOCKS:
        raise Unsupported(f"blocks of {block} weights; wanted a power of two from {BLOCKS[0]} to {BLOCKS[-1]}")


def _check_code(code: str) -> None:
    if code not in get_args(ScaleCode):
        raise Unsupported(f"scales {code!r} of a packed weight; wanted one of {', '.join(get_args(ScaleCode))}")
