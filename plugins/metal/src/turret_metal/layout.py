"""The layout slot: views where MLX can, copies where it must."""

from __future__ import annotations

from collections.abc import Sequence

import mlx.core as mx
import numpy as np

from turret.spi import Shape, host_dtype

from .arrays import NAMES
from .stream import Stream, X


class MetalLayout:
    """Results may alias their input, which MLX never writes while somebody holds it."""

    def __init__(self, do: Stream) -> None:
        self._do = do

    def reshape(self, x: X, shape: Shape, /) -> X:
        return self._do(mx.reshape, x, shape)

    def transpose(self, x: X, axes: tuple[int, ...], /) -> X:
        return self._do(mx.transpose, x, axes)

    def slice(self, x: X, start: Shape, stop: Shape, /, *, step: Shape | None = None) -> X:
        for axis, (low, high) in enumerate(zip(start, stop, strict=True)):
            stride = 1 if step is None else step[axis]
            if stride > 1:
                at = self._do(mx.arange, low, high, stride, dtype=mx.int32)
                x = self._do(mx.take, x, at, axis=axis)
            else:
                x = cut(self._do, x, axis, low, high)
        return x

    def concatenate(self, xs: Sequence[X], /, *, axis: int) -> X:
        return self._do(mx.concatenate, list(xs), axis=axis)

    def pad(self, x: X, widths: Sequence[tuple[int, int]], /, *, value: float = 0.0) -> X:
        if not widths:
            return x
        filler = mx.array(np.asarray(value, host_dtype(NAMES[x.dtype])))
        return self._do(mx.pad, x, list(widths), constant_values=filler)

    def broadcast_to(self, x: X, shape: Shape, /) -> X:
        made: X = self._do.view(mx.broadcast_to, x, shape)
        return made


def cut(do: Stream, x: X, axis: int, low: int, high: int) -> X:
    """A view of `x` from `low` to `high` along one axis. MLX's indexing with brackets takes no stream.

    `mx.compile` merges equal operations and fails on some that have several results, as a split has. Inside a program
    the view is therefore the gradient of padding, which is a slice; outside, a split costs a third of the time.
    """
    if (low, high) == (0, x.shape[axis]):
        return x
    if do.is_tracing:
        widths = [(low, x.shape[axis] - high) if a == axis else (0, 0) for a in range(x.ndim)]
        sizes = [high - low if a == axis else size for a, size in enumerate(x.shape)]
        part: X = do.view(_unpadded, x, sizes, widths)
        return part
    parts: list[X] = do.view(mx.split, x, [low, high], axis=axis)
    return parts[1]


def _unpadded(x: X, sizes: list[int], widths: list[tuple[int, int]], stream: mx.Stream) -> X:
    """`x` without a margin of these widths, in the shape `sizes`; the padding itself is never computed."""
    inner = mx.zeros(sizes, x.dtype, stream=stream)
    _, (made,) = mx.vjp(lambda part: mx.pad(part, widths, stream=stream), [inner], [x])
    return made
