"""The reduction slot."""

from __future__ import annotations

import math

import mlx.core as mx

from turret.spi import ShapeError

from .arrays import fold, like, wide
from .stream import Stream, X

Axis = int | tuple[int, ...]


class MetalReduction:
    """Halves are reduced in float32: MLX would overflow in a float16 mean of large values."""

    def __init__(self, do: Stream) -> None:
        self._do = do

    def sum(self, x: X, /, *, axis: Axis, keepdims: bool = False) -> X:
        do = self._do
        return like(do, fold(do, mx.sum, wide(do, x), axis=axis, keepdims=keepdims), x)

    def mean(self, x: X, /, *, axis: Axis, keepdims: bool = False) -> X:
        do = self._do
        count = math.prod(x.shape[a] for a in ((axis,) if isinstance(axis, int) else axis))
        total = fold(do, mx.sum, wide(do, x), axis=axis, keepdims=keepdims)
        return like(do, do(mx.divide, total, float(count)), x)

    def max(self, x: X, /, *, axis: Axis, keepdims: bool = False) -> X:
        if any(x.shape[a] == 0 for a in ((axis,) if isinstance(axis, int) else axis)):
            raise ShapeError(f"max over an empty axis: shape {x.shape}, axis {axis}; wanted at least one element")
        return fold(self._do, mx.max, x, axis=axis, keepdims=keepdims)

    def argmax(self, x: X, /, *, axis: int, keepdims: bool = False) -> X:
        do = self._do
        return do(mx.astype, fold(do, mx.argmax, x, axis=axis, keepdims=keepdims), mx.int32)
