"""The linear slot."""

from __future__ import annotations

import math

import mlx.core as mx

from .arrays import fold, like, wide
from .products import times_transposed, transposed_times
from .stream import Stream, X


class MetalLinear:
    """All leading axes of x fold into rows: one product of two matrices, which is what MLX does fastest."""

    def __init__(self, do: Stream) -> None:
        self._do = do

    def linear(self, x: X, weight: X, bias: X | None, /) -> X:
        do = self._do
        y = times_transposed(do, _rows(do, x), weight)
        if bias is not None:
            y = like(do, do(mx.add, wide(do, y), wide(do, bias)), x)
        return do(mx.reshape, y, (*x.shape[:-1], weight.shape[0]))

    def linear_vjp_input(self, dy: X, weight: X, /) -> X:
        do = self._do
        return do(mx.reshape, do(mx.matmul, _rows(do, dy), weight), (*dy.shape[:-1], weight.shape[1]))

    def linear_vjp_weight(self, dy: X, x: X, /) -> tuple[X, X]:
        do, rows = self._do, _rows(self._do, dy)
        dweight = transposed_times(do, rows, _rows(do, x))
        return dweight, like(do, fold(do, mx.sum, wide(do, rows), axis=0), dy)


def _rows(do: Stream, x: X) -> X:
    """(..., D) as (N, D)."""
    return do(mx.reshape, x, (math.prod(x.shape[:-1]), x.shape[-1]))
