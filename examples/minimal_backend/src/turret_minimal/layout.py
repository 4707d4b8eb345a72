"""The layout slot: the one whose results may share memory with their input."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from turret.spi import Shape

from .storage import X


class MinimalLayout:
    """Views where NumPy has them. That is safe because nobody writes into an array that was not donated."""

    def reshape(self, x: X, shape: Shape, /) -> X:
        return x.reshape(shape)

    def transpose(self, x: X, axes: tuple[int, ...], /) -> X:
        return x.transpose(axes)

    def slice(self, x: X, start: Shape, stop: Shape, /, *, step: Shape | None = None) -> X:
        bounds = zip(start, stop, step or (1,) * x.ndim, strict=True)
        return np.asarray(x[tuple(slice(*bound) for bound in bounds)])  # at rank 0, x[()] is a scalar

    def concatenate(self, xs: Sequence[X], /, *, axis: int) -> X:
        return np.concatenate(xs, axis=axis)

    def pad(self, x: X, widths: Sequence[tuple[int, int]], /, *, value: float = 0.0) -> X:
        shape = tuple(before + size + after for size, (before, after) in zip(x.shape, widths, strict=True))
        inside = tuple(slice(before, before + size) for size, (before, _) in zip(x.shape, widths, strict=True))
        padded = np.full(shape, value, x.dtype)
        padded[inside] = x
        return padded

    def broadcast_to(self, x: X, shape: Shape, /) -> X:
        return np.broadcast_to(x, shape)  # one element stands for many: whoever writes must copy first
