"""The layout slot: views where NumPy can, copies where it must."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from turret.spi import Shape

from .arrays import X
from .memory import like


class CpuLayout:
    """Results may alias their input; broadcast results are read-only."""

    def reshape(self, x: X, shape: Shape, /) -> X:
        return x.reshape(shape)

    def transpose(self, x: X, axes: tuple[int, ...], /) -> X:
        return x.transpose(axes)

    def slice(self, x: X, start: Shape, stop: Shape, /, *, step: Shape | None = None) -> X:
        steps = step or (1,) * len(start)
        bounds = tuple(slice(a, b, s) for a, b, s in zip(start, stop, steps, strict=True))
        return np.asarray(x[bounds])

    def concatenate(self, xs: Sequence[X], /, *, axis: int) -> X:
        shape = list(xs[0].shape)
        shape[axis] = sum(x.shape[axis] for x in xs)
        return np.concatenate(xs, axis=axis, out=like(xs[0], tuple(shape)))

    def pad(self, x: X, widths: Sequence[tuple[int, int]], /, *, value: float = 0.0) -> X:
        shape = tuple(size + before + after for size, (before, after) in zip(x.shape, widths, strict=True))
        out = np.full(shape, value, x.dtype)
        out[tuple(slice(before, before + size) for size, (before, _) in zip(x.shape, widths, strict=True))] = x
        return out

    def broadcast_to(self, x: X, shape: Shape, /) -> X:
        return np.broadcast_to(x, shape)
