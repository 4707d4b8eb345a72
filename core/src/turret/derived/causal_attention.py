"""Causal attention with its probabilities materialized."""

from __future__ import annotations

from typing import Generic

from turret.spi import A, Required

from .grouped_heads import GroupedHeads
from .ops import Ops


class DerivedCausalAttention(Generic[A]):
    """softmax(scale * q k^T under the causal mask) v; the mask is -inf, so that what is unseen weighs exactly 0."""

    def __init__(self, required: Required[A]) -> None:
        self._ops = Ops(required)
        self._heads = GroupedHeads(self._ops)

    def attend(self, q: A, k: A, v: A, /, *, scale: float, offset: int) -> tuple[A, A]:
        heads = self._heads
        seen = heads.causal(q.shape[1], k.shape[1], offset)
        probabilities, _, _ = heads.softmax(heads.scores(q, k, scale), seen)
        return self._ops.like(heads.mix(probabilities, v), q), probabilities

    def attend_vjp(self, dy: A, q: A, k: A, v: A, probabilities: A, /, *, scale: float) -> tuple[A, A, A]:
        o = self._ops
        dq, dk, dv = self._heads.gradients(dy, q, k, v, probabilities, scale)
        return o.like(dq, q), o.like(dk, k), o.like(dv, v)
