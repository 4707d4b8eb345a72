"""Calling the matrix product kernels: scratch, zeros and the estimate of the work."""

from __future__ import annotations

import numpy as np

from .arrays import X
from .kernels.intrinsics import PANEL
from .kernels.product import DEPTH, LEFT, column_sums, few_rows, product
from .memory import empty
from .threads import POOL

FLOPS = 70.0  # a nanosecond on one core, for the choice between one core and all
FEW = 4

_zeros = np.zeros(1024, np.float32)


def zeros(size: int) -> X:
    """At least `size` zeros that nobody writes."""
    global _zeros
    kept = _zeros  # another thread may put a shorter one there meanwhile
    if kept.size < size:
        kept = _zeros = np.zeros(size, np.float32)
    return kept


def multiply(a: X, ta: bool, b: X, tb: bool, init: X | None, shape: tuple[int, int, int, int]) -> X:
    """init (N) + op(a) op(b) for shape (Z, M, N, K); dense float32, nothing empty; returns (Z, M, N)."""
    batch, rows, columns, depth = shape
    out = empty((batch, rows, columns))
    scratch = POOL.scratch(LEFT + min(depth, DEPTH) * -(-columns // PANEL) * PANEL)
    start = zeros(columns) if init is None else init
    work = 2 * batch * rows * columns * depth / FLOPS
    if ta:
        work = min(work, 39.0 * POOL.WORTH * POOL.parts)
    size = scratch.shape[1]
    POOL.run(product, work, a, int(ta), b, int(tb), start, out, batch, rows, columns, depth, scratch, size)
    return out


def multiply_few(x: X, weight: X, bias: X | None) -> X:
    """x (M, I) weight^T (I, O) + bias for M up to FEW."""
    (rows, depth), columns = x.shape, weight.shape[0]
    out = empty((rows, columns))
    work = columns * depth * (0.1 + 0.05 * rows)
    POOL.run(few_rows, work, x, weight, zeros(columns) if bias is None else bias, out, rows, columns, depth)
    return out


def sum_rows(x: X, rows: int, columns: int) -> X:
    """Column sums (columns,) of dense x seen as (rows, columns)."""
    out, some = empty((columns,)), empty((columns,))
    POOL.run(column_sums, 0.15 * rows * columns, x, out, some, rows, columns)
    return out
