"""The layout slot."""

from __future__ import annotations

from collections.abc import Sequence

from turret.spi import Shape

from .arrays import X, like
from .library import lax
from .place import Place
from .programs import program

Widths = tuple[tuple[int, int], ...]


class TpuLayout:
    """Eager results are copies, but for a change that changes nothing; within a program XLA moves what it must."""

    def __init__(self, place: Place) -> None:
        self._place = place

    def reshape(self, x: X, shape: Shape, /) -> X:
        return x if x.shape == tuple(shape) else self._place.run(_reshape, x, shape=tuple(shape))

    def transpose(self, x: X, axes: tuple[int, ...], /) -> X:
        return self._place.run(_transpose, x, axes=tuple(axes))

    def slice(self, x: X, start: Shape, stop: Shape, /, *, step: Shape | None = None) -> X:
        return self._place.run(_slice, x, start=tuple(start), stop=tuple(stop), step=step and tuple(step))

    def concatenate(self, xs: Sequence[X], /, *, axis: int) -> X:
        return self._place.run(_concatenate, tuple(xs), axis=axis)

    def pad(self, x: X, widths: Sequence[tuple[int, int]], /, *, value: float = 0.0) -> X:
        return self._place.run(_pad, x, value, widths=tuple((before, after) for before, after in widths))

    def broadcast_to(self, x: X, shape: Shape, /) -> X:
        return x if x.shape == tuple(shape) else self._place.run(_broadcast_to, x, shape=tuple(shape))


@program("shape")
def _reshape(x: X, *, shape: Shape) -> X:
    return lax.reshape(x, shape)


@program("axes")
def _transpose(x: X, *, axes: tuple[int, ...]) -> X:
    return lax.transpose(x, axes)


@program("start", "stop", "step")
def _slice(x: X, *, start: Shape, stop: Shape, step: Shape | None) -> X:
    return lax.slice(x, start, stop, step)


@program("axis")
def _concatenate(xs: tuple[X, ...], *, axis: int) -> X:
    return lax.concatenate(xs, axis)


@program("widths")
def _pad(x: X, value: X, *, widths: Widths) -> X:
    return lax.pad(x, like(value, x), tuple((before, after, 0) for before, after in widths))


@program("shape")
def _broadcast_to(x: X, *, shape: Shape) -> X:
    return lax.broadcast_in_dim(x, shape, tuple(range(len(shape) - x.ndim, len(shape))))
