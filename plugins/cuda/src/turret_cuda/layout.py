"""The layout slot: views where strides allow one, copies where they do not."""

from __future__ import annotations

from collections.abc import Sequence

import cupy

from turret.spi import Shape

from .library import X
from .place import Place
from .storage import word


class CudaLayout:
    """Results may alias their input."""

    def __init__(self, place: Place) -> None:
        self._place = place

    def reshape(self, x: X, shape: Shape, /) -> X:
        return self._place.dense(x).reshape(shape)

    def transpose(self, x: X, axes: tuple[int, ...], /) -> X:
        return x.transpose(axes)

    def slice(self, x: X, start: Shape, stop: Shape, /, *, step: Shape | None = None) -> X:
        steps = step or (1,) * len(start)
        return x[tuple(slice(a, b, s) for a, b, s in zip(start, stop, steps, strict=True))]

    def concatenate(self, xs: Sequence[X], /, *, axis: int) -> X:
        place, shape = self._place, list(xs[0].shape)
        shape[axis] = sum(x.shape[axis] for x in xs)
        made = place.empty(tuple(shape), xs[0].dtype)
        start, whole = 0, [slice(None)] * len(shape)
        for x in xs:
            whole[axis] = slice(start, start + x.shape[axis])
            place.copy_into(made[tuple(whole)], x)
            start += x.shape[axis]
        return made

    def pad(self, x: X, widths: Sequence[tuple[int, int]], /, *, value: float = 0.0) -> X:
        place = self._place
        shape = tuple(size + before + after for size, (before, after) in zip(x.shape, widths, strict=True))
        made = place.empty(shape, x.dtype)
        place.spread("copy", f"fill_{x.dtype.itemsize}", made.size, word(value, x.dtype), made, made.size)
        inside = tuple(slice(before, before + size) for size, (before, _) in zip(x.shape, widths, strict=True))
        place.copy_into(made[inside], x)
        return made

    def broadcast_to(self, x: X, shape: Shape, /) -> X:
        return cupy.broadcast_to(x, shape)
