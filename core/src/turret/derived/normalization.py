"""LayerNorm and RMSNorm from means over the last axis."""

from __future__ import annotations

from typing import Generic

from turret.spi import A, Normed, Required

from .ops import Ops


class DerivedNormalization(Generic[A]):
    """The variance is the mean square of the centred values: no difference of two large numbers.

    With n the normed values and g = dy * weight: dx = rstd (g - mean(g n) n) for RMSNorm, less rstd mean(g) for
    LayerNorm; dweight = sum(dy n), dbias = sum(dy).
    """

    def __init__(self, required: Required[A]) -> None:
        self._ops = Ops(required)

    def layer_norm(self, x: A, weight: A, bias: A, /, *, eps: float) -> Normed[A]:
        o = self._ops
        wide = o.wide(x)
        mean = o.mean(wide, axis=-1, keepdims=True)
        centred = o.subtract(wide, mean)
        rstd = self._rstd(centred, eps)
        scaled = o.multiply(o.multiply(centred, rstd), o.wide(weight))
        return Normed(o.like(o.add(scaled, o.wide(bias)), x), mean, rstd)

    def layer_norm_vjp(self, dy: A, x: A, weight: A, mean: A, rstd: A, /) -> tuple[A, A, A]:
        o = self._ops
        wide_dy, normed = o.wide(dy), o.multiply(o.subtract(o.wide(x), mean), rstd)
        g = o.multiply(wide_dy, o.wide(weight))
        centred = o.subtract(g, o.mean(g, axis=-1, keepdims=True))
        dx = o.multiply(o.subtract(centred, self._lean(g, normed)), rstd)
        dweight = o.sum_rows(o.multiply(wide_dy, normed))
        return o.like(dx, x), o.like(dweight, weight), o.like(o.sum_rows(wide_dy), weight)

    def rms_norm(self, x: A, weight: A, /, *, eps: float) -> tuple[A, A]:
        o = self._ops
        wide = o.wide(x)
        rstd = self._rstd(wide, eps)
        return o.like(o.multiply(o.multiply(wide, rstd), o.wide(weight)), x), rstd

    def rms_norm_vjp(self, dy: A, x: A, weight: A, rstd: A, /) -> tuple[A, A]:
        o = self._ops
        wide_dy, normed = o.wide(dy), o.multiply(o.wide(x), rstd)
        g = o.multiply(wide_dy, o.wide(weight))
        dx = o.multiply(o.subtract(g, self._lean(g, normed)), rstd)
        return o.like(dx, x), o.like(o.sum_rows(o.multiply(wide_dy, normed)), weight)

    def _rstd(self, x: A, eps: float) -> A:
        o = self._ops
        return o.rsqrt(o.add(o.mean(o.multiply(x, x), axis=-1, keepdims=True), eps))

    def _lean(self, g: A, normed: A) -> A:
        """The part of g along the normed row, which moving x cannot change."""
        o = self._ops
        return o.multiply(normed, o.mean(o.multiply(g, normed), axis=-1, keepdims=True))
