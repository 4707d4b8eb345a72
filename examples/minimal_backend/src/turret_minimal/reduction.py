"""The reduction slot."""

from __future__ import annotations

import math

import numpy as np

from turret.spi import ShapeError

from .storage import X, quiet

Axis = int | tuple[int, ...]


class MinimalReduction:
    """The dtype of x is kept, whatever the sum was kept in; a result of rank 0 is an array."""

    @quiet
    def sum(self, x: X, /, *, axis: Axis, keepdims: bool = False) -> X:
        # Halves accumulate in float32; int32 stays int32 and wraps, where NumPy alone would widen it.
        wide = np.float32 if x.dtype == np.float16 else x.dtype
        return np.asarray(np.sum(x, axis=axis, keepdims=keepdims, dtype=wide)).astype(x.dtype)

    @quiet
    def mean(self, x: X, /, *, axis: Axis, keepdims: bool = False) -> X:
        # Divided before it is narrowed: the float16 sum of two 60000s is infinite, their mean is not.
        wide = x.astype(np.float32) if x.dtype == np.float16 else x
        count = math.prod(_sizes(x, axis))  # 0 gives 0 / 0, the NaN that is wanted over an empty axis
        return np.asarray(np.divide(self.sum(wide, axis=axis, keepdims=keepdims), float(count))).astype(x.dtype)

    @quiet
    def max(self, x: X, /, *, axis: Axis, keepdims: bool = False) -> X:
        _check_not_empty("max", x, axis)
        return np.asarray(np.max(x, axis=axis, keepdims=keepdims))

    def argmax(self, x: X, /, *, axis: int, keepdims: bool = False) -> X:
        # The first of equals, as NumPy has it: greedy decoding must not depend on the backend.
        _check_not_empty("argmax", x, axis)
        return np.asarray(np.argmax(x, axis=axis, keepdims=keepdims)).astype(np.int32)


def _sizes(x: X, axis: Axis) -> list[int]:
    return [x.shape[a] for a in ((axis,) if isinstance(axis, int) else axis)]


def _check_not_empty(name: str, x: X, axis: Axis) -> None:
    if 0 in _sizes(x, axis):
        raise ShapeError(
            f"{name} over an empty axis: shape {x.shape}, axis {axis}; there is no greatest of nothing, "
            "leave empty arrays out before"
        )
