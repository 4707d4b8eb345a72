"""Truth of the folds: sum, mean, maximum and its first position. Rank 0 comes out as an array."""

from __future__ import annotations

import math
from typing import TypeAlias

import numpy as np

from .arrays import Array, quiet

Axes: TypeAlias = int | tuple[int, ...]


@quiet
def sum(x: Array, /, *, axis: Axes, keepdims: bool = False) -> Array:
    """The sum; 0 over an empty axis; integers wrap in their own dtype. Source: IEEE 754-2019, section 9.4."""
    total = x.sum(axis=axis, keepdims=True)
    if isinstance(x, np.ndarray) and x.dtype.kind == "i":
        total = total.astype(x.dtype)
    return total.reshape(_folded(x.shape, axis, keepdims))


@quiet
def mean(x: Array, /, *, axis: Axes, keepdims: bool = False) -> Array:
    """The sum over the count; NaN over an empty axis."""
    count = math.prod(x.shape[each] for each in _positions(x.shape, axis))
    return (x.sum(axis=axis, keepdims=True) / count).reshape(_folded(x.shape, axis, keepdims))


@quiet
def max(x: Array, /, *, axis: Axes, keepdims: bool = False) -> Array:
    """The greatest; NaN wins. Source: IEEE 754-2019, section 9.6.

    Raises: ValueError where a reduced axis has size 0.
    """
    return x.max(axis=axis, keepdims=True).reshape(_folded(x.shape, axis, keepdims))


@quiet
def argmax(x: Array, /, *, axis: int, keepdims: bool = False) -> Array:
    """int32 position of the first of the greatest, or of the first NaN."""
    hit = (x == x.max(axis=axis, keepdims=True)) | (x != x)
    first = np.argmax(hit, axis=axis, keepdims=True).astype(np.int32)
    return first.reshape(_folded(x.shape, axis, keepdims))


def _positions(shape: tuple[int, ...], axis: Axes) -> set[int]:
    return {each % len(shape) for each in ((axis,) if isinstance(axis, int) else axis)}


def _folded(shape: tuple[int, ...], axis: Axes, keepdims: bool) -> tuple[int, ...]:
    gone = _positions(shape, axis)
    if keepdims:
        return tuple(1 if at in gone else size for at, size in enumerate(shape))
    return tuple(size for at, size in enumerate(shape) if at not in gone)
