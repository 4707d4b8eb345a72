"""Products of matrices as they lie in memory: a copy is made only of what cuBLAS cannot read."""

from __future__ import annotations

import math
from collections.abc import Sequence

import cupy

from .cublas import Operand
from .library import X
from .place import Place
from .storage import word


def product(
    place: Place, out: X, a: X, b: X, *, transpose_a: bool = False, transpose_b: bool = False, add: bool = False
) -> None:
    """Writes op(a) op(b) over the last two axes to `out`, or adds it with `add`; the leading axes of all are equal.

    `out` is dense; `op` exchanges the last two axes where its flag is set.
    """
    depth = a.shape[-2] if transpose_a else a.shape[-1]
    if not out.size:
        return
    if not depth:
        if not add:
            clear(place, out)
        return
    m, n = out.shape[-2:]
    sizes = math.prod(out.shape[:-2]), m, n, depth
    a, left = _readable(place, a, transpose_a)
    b, right = _readable(place, b, transpose_b)
    result = Operand(out.data.ptr, n, m * n)
    place.multiply(lambda blas: blas.strided(out.dtype, sizes, left, right, result, add=add), a, b, out)


def clear(place: Place, out: X) -> None:
    """Writes zeros to all of `out`, which may be a view."""
    zero = place.empty((), out.dtype)
    place.spread("copy", f"fill_{out.dtype.itemsize}", 1, word(0.0, out.dtype), zero, 1)
    place.copy_into(out, cupy.broadcast_to(zero, out.shape))


def rows(place: Place, x: X) -> X:
    """(..., C) as (N, C): a view where one step leads from each row to the next."""
    count = math.prod(x.shape[:-1])
    step = _one_step(x.shape[:-1], x.strides[:-1])
    if step is None:
        return place.dense(x).reshape((count, x.shape[-1]))
    return cupy.ndarray((count, x.shape[-1]), x.dtype, x.data, strides=(step, x.strides[-1]))


def steps(x: X) -> tuple[int, ...]:
    """Elements from one index to the next, for each axis."""
    return tuple(step // x.dtype.itemsize for step in x.strides)


def _readable(place: Place, x: X, transposed: bool) -> tuple[X, Operand]:
    """x, or a dense copy, and the matrices of its last two axes as cuBLAS takes them."""
    where, (height, width) = steps(x), x.shape[-2:]
    between = _one_step(x.shape[:-2], where[:-2])
    if between is not None:
        down, across = where[-2:]
        if (width == 1 or across == 1) and (height == 1 or down >= width):
            return x, Operand(x.data.ptr, width if height == 1 else down, between, transposed)
        if (height == 1 or down == 1) and (width == 1 or across >= height):
            return x, Operand(x.data.ptr, height if width == 1 else across, between, not transposed)
    x = place.copied(x)
    return x, Operand(x.data.ptr, width, height * width, transposed)


def _one_step(sizes: Sequence[int], strides: Sequence[int]) -> int | None:
    """The one stride of these axes taken as one; None where there is none, 0 for one element."""
    count, found = 1, 0
    for size, stride in zip(reversed(sizes), reversed(strides), strict=True):
        if size == 1:
            continue
        if count == 1:
            found = stride
        elif stride != found * count:
            return None
        count *= size
    return found
