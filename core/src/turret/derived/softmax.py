"""Softmax and log-softmax from exp, log and row reductions."""

from __future__ import annotations

from typing import Generic

from turret.spi import A, Required

from .ops import Ops


class DerivedSoftmax(Generic[A]):
    """Rows are shifted by their maximum, so that exp sees nothing above 0.

    Gradients: y (dy - sum(y dy)) for softmax, dy - exp(y) sum(dy) for log-softmax.
    """

    def __init__(self, required: Required[A]) -> None:
        self._ops = Ops(required)

    def softmax(self, x: A, /) -> A:
        o = self._ops
        weights = o.exp(self._shifted(x))
        return o.like(o.divide(weights, o.sum(weights, axis=-1, keepdims=True)), x)

    def softmax_vjp(self, dy: A, y: A, /) -> A:
        o = self._ops
        wide_dy, wide_y = o.wide(dy), o.wide(y)
        inner = o.sum(o.multiply(wide_dy, wide_y), axis=-1, keepdims=True)
        return o.like(o.multiply(wide_y, o.subtract(wide_dy, inner)), y)

    def log_softmax(self, x: A, /) -> A:
        o = self._ops
        shifted = self._shifted(x)
        total = o.sum(o.exp(shifted), axis=-1, keepdims=True)
        return o.like(o.subtract(shifted, o.log(total)), x)

    def log_softmax_vjp(self, dy: A, y: A, /) -> A:
        o = self._ops
        wide_dy = o.wide(dy)
        total = o.sum(wide_dy, axis=-1, keepdims=True)
        return o.like(o.subtract(wide_dy, o.multiply(o.exp(o.wide(y)), total)), y)

    def _shifted(self, x: A) -> A:
        o = self._ops
        wide = o.wide(x)
        return o.subtract(wide, o.max(wide, axis=-1, keepdims=True))
