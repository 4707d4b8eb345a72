"""Truth of the rearrangements, any dtype: exact, so the values come out bit for bit."""

from __future__ import annotations

import builtins
from collections.abc import Sequence

import numpy as np

from .arrays import Array

Shape = tuple[int, ...]


def reshape(x: Array, shape: Shape, /) -> Array:
    """`x` in another shape of equal element count, row-major."""
    return x.reshape(shape)


def transpose(x: Array, axes: tuple[int, ...], /) -> Array:
    """Axis i of the result is axis `axes[i]` of x."""
    return np.transpose(x, axes)


def slice(x: Array, start: Shape, stop: Shape, /, *, step: Shape | None = None) -> Array:
    """start <= position < stop, every `step`-th, along each axis."""
    steps = step or (1,) * x.ndim
    return x[tuple(builtins.slice(*bounds) for bounds in zip(start, stop, steps, strict=True))]


def concatenate(xs: Sequence[Array], /, *, axis: int) -> Array:
    """The arrays one after the other along `axis`."""
    return np.concatenate(list(xs), axis=axis)


def pad(x: Array, widths: Sequence[tuple[int, int]], /, *, value: float = 0.0) -> Array:
    """`value` added (before, after) each axis."""
    return np.pad(x, list(widths), constant_values=value) if x.ndim else x


def broadcast_to(x: Array, shape: Shape, /) -> Array:
    """`x` repeated to `shape`. Source: the broadcasting rule of Harris et al. 2020 (NumPy)."""
    return np.broadcast_to(x, shape)
