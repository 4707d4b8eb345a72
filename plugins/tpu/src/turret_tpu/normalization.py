"""The normalization slot."""

from __future__ import annotations

from turret.spi import Normed

from .arrays import X, add, column_sum, like, mul, row_mean, sub, wide
from .library import lax
from .place import Place
from .programs import program


class TpuNormalization:
    """The variance is the mean square of the centred values: no difference of two large numbers.

    With n the normed values and g = dy * weight: dx = rstd (g - mean(g n) n) for RMSNorm, less rstd mean(g) for
    LayerNorm; dweight = sum(dy n), dbias = sum(dy).
    """

    def __init__(self, place: Place) -> None:
        self._place = place

    def layer_norm(self, x: X, weight: X, bias: X, /, *, eps: float) -> Normed[X]:
        return Normed(*self._place.run(_layer_norm, x, weight, bias, eps=float(eps)))

    def layer_norm_vjp(self, dy: X, x: X, weight: X, mean: X, rstd: X, /) -> tuple[X, X, X]:
        return self._place.run(_layer_norm_vjp, dy, x, weight, mean, rstd)

    def rms_norm(self, x: X, weight: X, /, *, eps: float) -> tuple[X, X]:
        return self._place.run(_rms_norm, x, weight, eps=float(eps))

    def rms_norm_vjp(self, dy: X, x: X, weight: X, rstd: X, /) -> tuple[X, X]:
        return self._place.run(_rms_norm_vjp, dy, x, weight, rstd)


@program("eps")
def _layer_norm(x: X, weight: X, bias: X, *, eps: float) -> tuple[X, X, X]:
    y = wide(x)
    mean = row_mean(y)
    centred = sub(y, mean)
    rstd = _rstd(centred, eps)
    return like(add(mul(mul(centred, rstd), wide(weight)), wide(bias)), x), mean, rstd


@program()
def _layer_norm_vjp(dy: X, x: X, weight: X, mean: X, rstd: X) -> tuple[X, X, X]:
    wide_dy, normed = wide(dy), mul(sub(wide(x), mean), rstd)
    g = mul(wide_dy, wide(weight))
    dx = mul(sub(sub(g, row_mean(g)), _lean(g, normed)), rstd)
    return like(dx, x), like(column_sum(mul(wide_dy, normed)), weight), like(column_sum(wide_dy), weight)


@program("eps")
def _rms_norm(x: X, weight: X, *, eps: float) -> tuple[X, X]:
    y = wide(x)
    rstd = _rstd(y, eps)
    return like(mul(mul(y, rstd), wide(weight)), x), rstd


@program()
def _rms_norm_vjp(dy: X, x: X, weight: X, rstd: X) -> tuple[X, X]:
    wide_dy, normed = wide(dy), mul(wide(x), rstd)
    g = mul(wide_dy, wide(weight))
    dx = mul(sub(g, _lean(g, normed)), rstd)
    return like(dx, x), like(column_sum(mul(wide_dy, normed)), weight)


def _rstd(x: X, eps: float) -> X:
    return lax.rsqrt(add(row_mean(mul(x, x)), eps))


def _lean(g: X, normed: X) -> X:
    """The part of g along the normed row, which moving x cannot change."""
    return mul(normed, row_mean(mul(g, normed)))
