"""The reduction slot."""

from __future__ import annotations

import math

from turret.spi import ShapeError

from .arrays import DTYPES, FLOAT32, HALF, X, div, like, wide
from .library import lax
from .place import Place
from .programs import program

Axis = int | tuple[int, ...]


class TpuReduction:
    """Halves are summed in float32."""

    def __init__(self, place: Place) -> None:
        self._place = place

    def sum(self, x: X, /, *, axis: Axis, keepdims: bool = False) -> X:
        return self._place.run(_sum, x, axes=_axes(axis, x.ndim), keepdims=keepdims)

    def mean(self, x: X, /, *, axis: Axis, keepdims: bool = False) -> X:
        return self._place.run(mean, x, axes=_axes(axis, x.ndim), keepdims=keepdims)

    def max(self, x: X, /, *, axis: Axis, keepdims: bool = False) -> X:
        axes = _axes(axis, x.ndim)
        if any(x.shape[a] == 0 for a in axes):
            raise ShapeError(f"max over an empty axis: shape {x.shape}, axis {axis}; wanted at least one element")
        return self._place.run(maximum, x, axes=axes, keepdims=keepdims)

    def argmax(self, x: X, /, *, axis: int, keepdims: bool = False) -> X:
        return self._place.run(_argmax, x, axes=_axes(axis, x.ndim), keepdims=keepdims)


def _axes(axis: Axis, rank: int) -> tuple[int, ...]:
    return tuple(sorted(a % rank for a in ((axis,) if isinstance(axis, int) else axis)))


def _kept(x: X, axes: tuple[int, ...], keepdims: bool) -> X:
    return lax.expand_dims(x, axes) if keepdims else x


@program("axes", "keepdims")
def _sum(x: X, *, axes: tuple[int, ...], keepdims: bool) -> X:
    return _kept(like(lax.reduce_sum(wide(x), axes), x), axes, keepdims)


@program("axes", "keepdims")
def mean(x: X, *, axes: tuple[int, ...], keepdims: bool) -> X:
    count = math.prod(x.shape[a] for a in axes)
    return _kept(like(div(lax.reduce_sum(wide(x), axes), float(count)), x), axes, keepdims)


@program("axes", "keepdims")
def maximum(x: X, *, axes: tuple[int, ...], keepdims: bool) -> X:
    greatest = lax.reduce_max(x, axes)
    if x.dtype == FLOAT32 or x.dtype in HALF:  # XLA's CPU compiler drops NaN on long rows
        greatest = lax.select(lax.reduce_or(lax.ne(x, x), axes), lax.full_like(greatest, math.nan), greatest)
    return _kept(greatest, axes, keepdims)


@program("axes", "keepdims")
def _argmax(x: X, *, axes: tuple[int, ...], keepdims: bool) -> X:
    return _kept(lax.argmax(x, axes[0], DTYPES["int32"]), axes, keepdims)
