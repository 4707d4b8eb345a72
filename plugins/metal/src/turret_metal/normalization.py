"""The normalization slot."""

from __future__ import annotations

import math

import mlx.core as mx

from turret.spi import Normed

from .arrays import fold, like, wide
from .stream import Stream, X


class MetalNormalization:
    """The variance is the mean square of the centred values: no difference of two large numbers.

    On the GPU the output comes from MLX's fused kernels. They do not tell the statistics, which are formulas beside
    them: where nobody takes a gradient they are never computed.
    """

    def __init__(self, do: Stream) -> None:
        self._do = do

    def layer_norm(self, x: X, weight: X, bias: X, /, *, eps: float) -> Normed[X]:
        do, x_wide = self._do, wide(self._do, x)
        mean = _mean(do, x_wide)
        centred = do(mx.subtract, x_wide, mean)
        rstd = _rstd(do, centred, eps)
        if do.on_gpu:
            return Normed(do(mx.fast.layer_norm, x, weight, bias, eps), mean, rstd)
        scaled = do(mx.multiply, do(mx.multiply, centred, rstd), wide(do, weight))
        return Normed(like(do, do(mx.add, scaled, wide(do, bias)), x), mean, rstd)

    def layer_norm_vjp(self, dy: X, x: X, weight: X, mean: X, rstd: X, /) -> tuple[X, X, X]:
        do, wide_dy = self._do, wide(self._do, dy)
        normed = do(mx.multiply, do(mx.subtract, wide(do, x), mean), rstd)
        g = do(mx.multiply, wide_dy, wide(do, weight))
        centred = do(mx.subtract, g, _mean(do, g))
        dx = do(mx.multiply, do(mx.subtract, centred, _lean(do, g, normed)), rstd)
        dweight = _sum_rows(do, do(mx.multiply, wide_dy, normed))
        return like(do, dx, x), like(do, dweight, weight), like(do, _sum_rows(do, wide_dy), weight)

    def rms_norm(self, x: X, weight: X, /, *, eps: float) -> tuple[X, X]:
        do, x_wide = self._do, wide(self._do, x)
        rstd = _rstd(do, x_wide, eps)
        if do.on_gpu:
            return do(mx.fast.rms_norm, x, weight, eps), rstd
        return like(do, do(mx.multiply, do(mx.multiply, x_wide, rstd), wide(do, weight)), x), rstd

    def rms_norm_vjp(self, dy: X, x: X, weight: X, rstd: X, /) -> tuple[X, X]:
        do, wide_dy = self._do, wide(self._do, dy)
        normed = do(mx.multiply, wide(do, x), rstd)
        g = do(mx.multiply, wide_dy, wide(do, weight))
        dx = do(mx.multiply, do(mx.subtract, g, _lean(do, g, normed)), rstd)
        return like(do, dx, x), like(do, _sum_rows(do, do(mx.multiply, wide_dy, normed)), weight)


def _mean(do: Stream, x: X) -> X:
    return fold(do, mx.mean, x, axis=-1, keepdims=True)


def _rstd(do: Stream, x: X, eps: float) -> X:
    return do(mx.rsqrt, do(mx.add, _mean(do, do(mx.multiply, x, x)), eps))


def _lean(do: Stream, g: X, normed: X) -> X:
    """The part of g along the normed row, which moving x cannot change."""
    return do(mx.multiply, normed, _mean(do, do(mx.multiply, g, normed)))


def _sum_rows(do: Stream, x: X) -> X:
    """(..., D) added up to (D,)."""
    rows = do(mx.reshape, x, (math.prod(x.shape[:-1]), x.shape[-1]))
    return fold(do, mx.sum, rows, axis=0)
