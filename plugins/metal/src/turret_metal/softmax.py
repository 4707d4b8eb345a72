"""The softmax slot."""

from __future__ import annotations

import mlx.core as mx

from .arrays import fold, like, wide
from .stream import Stream, X


class MetalSoftmax:
    """Rows are shifted by their maximum, so that exp sees nothing above 0."""

    def __init__(self, do: Stream) -> None:
        self._do = do

    def softmax(self, x: X, /) -> X:
        return like(self._do, row_softmax(self._do, wide(self._do, x)), x)

    def softmax_vjp(self, dy: X, y: X, /) -> X:
        do, wide_dy, wide_y = self._do, wide(self._do, dy), wide(self._do, y)
        inner = fold(do, mx.sum, do(mx.multiply, wide_dy, wide_y), axis=-1, keepdims=True)
        return like(do, do(mx.multiply, wide_y, do(mx.subtract, wide_dy, inner)), y)

    def log_softmax(self, x: X, /) -> X:
        do, x_wide = self._do, wide(self._do, x)
        shifted = do(mx.subtract, x_wide, fold(do, mx.max, x_wide, axis=-1, keepdims=True))
        total = fold(do, mx.sum, do(mx.exp, shifted), axis=-1, keepdims=True)
        return like(do, do(mx.subtract, shifted, do(mx.log, total)), x)

    def log_softmax_vjp(self, dy: X, y: X, /) -> X:
        do, wide_dy = self._do, wide(self._do, dy)
        total = fold(do, mx.sum, wide_dy, axis=-1, keepdims=True)
        return like(do, do(mx.subtract, wide_dy, do(mx.multiply, do(mx.exp, wide(do, y)), total)), y)


def row_softmax(do: Stream, x: X) -> X:
    """The softmax of float32 rows. MLX reduces inside, which an empty array must not reach."""
    return do(mx.softmax, x, axis=-1) if x.size else x
