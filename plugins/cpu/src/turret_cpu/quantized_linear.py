"""The slot of 4-bit NormalFloat weights."""

from __future__ import annotations

import math
from collections import Counter

import numpy as np

from turret.derived.quantized_linear import GROUP, DerivedQuantizedLinear
from turret.spi import DTypeError, Packed, Required, ScaleCode, ShapeError, Unsupported

from .arrays import Rest, X, dense, kernel_ready
from .kernels import nf4
from .memory import empty
from .products import FLOPS, zeros
from .threads import POOL

FEW = 48  # rows up to which unpacked lines are used as they are, without panels
UNPACKING, PACKING = 0.12, 1.5  # nanoseconds a weight on one core, for the choice between one core and all
_HALF, _FLOAT = np.dtype(np.float16), np.dtype(np.float32)
_BLOCKS = {1 << shift: shift for shift in range(5, 13)}


class CpuQuantizedLinear:
    """Products that look levels up in registers, or unpack a tile at a time: never the whole weight.

    Packed bytes and unpacked values are those of `turret.derived`, bit for bit. Halves are computed in float32.
    """

    def __init__(self, required: Required[X], calls: Counter[str]) -> None:
        self._rest = Rest("quantized_linear", DerivedQuantizedLinear(required), calls)
        self._mean = required.reduction.mean

    def pack(self, weight: X, /, *, block: int, scales: ScaleCode) -> Packed[X]:
        shift, table = _shift(block), _table(scales)
        if not kernel_ready(weight):
            return self._rest().pack(weight, block=block, scales=scales)
        codes, largest = np.empty(-(-weight.size // 2), np.uint8), empty((-(-weight.size // block),))
        work = PACKING * weight.size
        POOL.run(nf4.pack_weights, work, dense(weight), codes, largest, weight.size, shift)
        if table is None:
            return Packed(codes, largest, None, None, weight.shape, block, scales)
        offset = self._mean(largest, axis=0)
        with np.errstate(all="ignore"):
            centred = np.subtract(largest, offset)
        scale_codes, group_scales = np.empty(largest.size, np.uint8), empty((-(-largest.size // GROUP),))
        POOL.run(nf4.pack_scales, 20.0 * largest.size, centred, scale_codes, group_scales, largest.size, table)
        return Packed(codes, scale_codes, group_scales, offset, weight.shape, block, scales)

    def unpack(self, packed: Packed[X], /) -> X:
        words, count, out = _words(packed), math.prod(packed.shape), empty(packed.shape)
        if not count:
            return out
        scratch = POOL.scratch(nf4.ROOM)
        POOL.run(nf4.unpack_weights, 0.25 * count, *words, out, count, scratch, scratch.shape[1])
        return out

    def linear(self, x: X, packed: Packed[X], bias: X | None, /) -> X:
        if x.dtype == _HALF:
            return _halved(self.linear(_widened(x), packed, None if bias is None else _widened(bias)))
        words, (outs, ins) = _words(packed), _matrix(packed)
        _check_width("x", x, ins, packed)
        if x.dtype != _FLOAT or not outs * ins:
            return self._rest().linear(x, packed, bias)
        if not x.size:
            return empty((*x.shape[:-1], outs))
        rows = x.size // ins
        if rows > FEW:
            init = zeros(outs) if bias is None else dense(bias)
            return _multiply(x, words, True, init, (rows, outs, ins)).reshape(*x.shape[:-1], outs)
        out = empty((*x.shape[:-1], outs))
        scratch = POOL.scratch(nf4.FEW_SCRATCH)
        work, start = outs * ins * (UNPACKING + 2 * rows / FLOPS), 0 if bias is None else dense(bias)
        POOL.run(nf4.few_rows, work, *words, dense(x), start, out, rows, outs, ins, scratch, scratch.shape[1])
        return out

    def linear_vjp_input(self, dy: X, packed: Packed[X], /) -> X:
        if dy.dtype == _HALF:
            return _halved(self.linear_vjp_input(_widened(dy), packed))
        words, (outs, ins) = _words(packed), _matrix(packed)
        _check_width("dy", dy, outs, packed)
        if dy.dtype != _FLOAT or not outs * ins:
            return self._rest().linear_vjp_input(dy, packed)
        if not dy.size:
            return empty((*dy.shape[:-1], ins))
        shape = (dy.size // outs, ins, outs)
        return _multiply(dy, words, False, zeros(ins), shape).reshape(*dy.shape[:-1], ins)


def _multiply(a: X, words: list[X | int | float], turned: bool, init: X, shape: tuple[int, int, int]) -> X:
    """init (N) + a weight for shape (M, N, K); the weight is (K, N), or (N, K) where `turned`."""
    rows, columns, depth = shape
    out, scratch = empty((rows, columns)), POOL.scratch(nf4.PRODUCT_SCRATCH)
    work = columns * depth * (1.0 + 2 * rows / FLOPS)
    POOL.run(nf4.product, work, *words, dense(a), int(turned), init, out, *shape, scratch, scratch.shape[1])
    return out


def _words(packed: Packed[X]) -> list[X | int | float]:
    """The operands that are a packed weight, after a look at whether its parts fit each other.

    Raises: ShapeError, DTypeError, Unsupported.
    """
    count, groups, offset = math.prod(packed.shape), packed.group_scales, packed.offset
    shift, table, blocks = _shift(packed.block), _table(packed.scale_code), -(-count // packed.block)
    codes = _part("codes", packed.codes, "uint8", -(-count // 2), packed)
    scales = _part("scales", packed.scales, "float32" if table is None else "uint8", blocks, packed)
    if table is None:
        if groups is not None or offset is not None:
            raise ShapeError("a packed weight of float32 scales with group_scales or offset; wanted neither")
        return [codes, scales, 0, 0, shift, 0]
    if groups is None or offset is None:
        raise ShapeError(f"a packed weight of {packed.scale_code} scales; wanted both group_scales and offset with it")
    tops = _part("group_scales", groups, "float32", -(-blocks // GROUP), packed)
    return [codes, scales, tops, float(offset), shift, table]


def _matrix(packed: Packed[X]) -> tuple[int, int]:
    if len(packed.shape) != 2:
        raise ShapeError(f"a packed weight {packed.shape}; wanted (O, I): unpack it, or pack it as a matrix")
    return packed.shape[0], packed.shape[1]


def _check_width(name: str, x: X, width: int, packed: Packed[X]) -> None:
    if x.shape[-1:] != (width,):
        raise ShapeError(f"{name} {x.shape} for a packed weight {packed.shape}; wanted {name} (..., {width})")


def _shift(block: int) -> int:
    """The binary logarithm of a block size."""
    if block not in _BLOCKS:
        raise Unsupported(f"blocks of {block} weights; wanted a power of two from {min(_BLOCKS)} to {max(_BLOCKS)}")
    return _BLOCKS[block]


def _table(scales: ScaleCode) -> X | None:
    """What a scale code means to the kernels."""
    if scales != "float32" and scales not in nf4.TABLES:
        raise Unsupported(f"scale code {scales!r}; wanted float32, {' or '.join(nf4.TABLES)}")
    return nf4.TABLES.get(scales)


def _part(name: str, part: X, dtype: str, size: int, packed: Packed[X]) -> X | int:
    """A part of a packed weight as an operand: where it lies, even if it may not be written."""
    if part.dtype != dtype:
        raise DTypeError(f"{name} of a packed weight are {part.dtype}; wanted {dtype}")
    if part.shape != (size,):
        raise ShapeError(
            f"{name} {part.shape} of a weight {packed.shape} in blocks of {packed.block}; wanted ({size},): "
            f"pack it again, or load all parts from one file"
        )
    if part.flags.carray and size:
        return part
    return part.ctypes.data if part.flags.c_contiguous and part.flags.aligned else np.array(part, order="C")


def _widened(x: X) -> X:
    return x.astype(np.float32)


def _halved(x: X) -> X:
    with np.errstate(all="ignore"):
        return x.astype(_HALF)
