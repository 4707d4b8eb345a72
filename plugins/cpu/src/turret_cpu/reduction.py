"""The reduction slot."""

from __future__ import annotations

import math

import numpy as np

from turret.spi import ShapeError

from .arrays import X, kernel_ready
from .products import sum_rows

Axis = int | tuple[int, ...]


class CpuReduction:
    """Halves are summed in float32; sums over leading axes in blocks, which keeps float32 accurate."""

    def sum(self, x: X, /, *, axis: Axis, keepdims: bool = False) -> X:
        axes = _axes(axis, x.ndim)
        if kernel_ready(x) and x.flags.carray and axes and axes == tuple(range(len(axes))) and len(axes) < x.ndim:
            left = x.shape[len(axes) :]
            shape = (*(1 for _ in axes), *left) if keepdims else left
            return sum_rows(x, math.prod(x.shape[: len(axes)]), math.prod(left)).reshape(shape)
        wide = np.float32 if x.dtype == np.float16 else x.dtype
        with np.errstate(all="ignore"):
            return np.asarray(np.sum(x, axis=axes, keepdims=keepdims, dtype=wide)).astype(x.dtype, copy=False)

    def mean(self, x: X, /, *, axis: Axis, keepdims: bool = False) -> X:
        count = math.prod(x.shape[a] for a in _axes(axis, x.ndim))
        wide = x.astype(np.float32) if x.dtype == np.float16 else x
        total = self.sum(wide, axis=axis, keepdims=keepdims)
        with np.errstate(all="ignore"):
            return np.asarray(np.divide(total, float(count))).astype(x.dtype, copy=False)

    def max(self, x: X, /, *, axis: Axis, keepdims: bool = False) -> X:
        axes = _axes(axis, x.ndim)
        if any(x.shape[a] == 0 for a in axes):
            raise ShapeError(f"max over an empty axis: shape {x.shape}, axis {axis}; wanted at least one element")
        with np.errstate(all="ignore"):
            return np.asarray(np.max(x, axis=axes, keepdims=keepdims))

    def argmax(self, x: X, /, *, axis: int, keepdims: bool = False) -> X:
        return np.asarray(np.argmax(x, axis=axis, keepdims=keepdims)).astype(np.int32)


def _axes(axis: Axis, rank: int) -> tuple[int, ...]:
    return tuple(sorted(a % rank for a in ((axis,) if isinstance(axis, int) else axis)))
