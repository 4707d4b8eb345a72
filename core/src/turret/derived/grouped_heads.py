"""The products of attention with grouped heads, which all three attention slots are made of."""

from __future__ import annotations

import math
from typing import Generic

from turret.spi import A

from .ops import Ops


class GroupedHeads(Generic[A]):
    """One matrix product for each key-value head: the H / K query heads that share it become more rows.

    So keys are never repeated, and the gradients of k and v sum over their group by themselves. Shapes as in
    `turret.spi.optional.attention`.
    """

    def __init__(self, ops: Ops[A]) -> None:
        self._ops = ops

    def scores(self, q: A, k: A, scale: float) -> A:
        """Scores, scale * q k^T: (B, H, T, S), float32 or wider."""
        o, (b, t, h, _), (_, s, kv, _) = self._ops, q.shape, k.shape
        product = o.matmul(self._fold(o.wide(q), kv), self._fold(o.wide(k), kv), transpose_b=True)
        return o.reshape(o.multiply(product, scale), (b, h, t, s))

    def softmax(self, scores: A, seen: A) -> tuple[A, A, A]:
        """Probabilities, exactly 0 where not seen, with the maximum and the sum of each row: (B, H, T, 1)."""
        o = self._ops
        masked = o.where(seen, scores, -math.inf)
        row_max = o.max(masked, axis=-1, keepdims=True)
        weights = o.exp(o.subtract(masked, row_max))
        row_sum = o.sum(weights, axis=-1, keepdims=True)
        return o.divide(weights, row_sum), row_max, row_sum

    def mix(self, probabilities: A, v: A) -> A:
        """Probabilities (B, H, T, S) times v (B, S, K, d): (B, T, H, d), float32 or wider."""
        o, (b, h, t, s), kv = self._ops, probabilities.shape, v.shape[2]
        rows = o.reshape(probabilities, (b * kv, h // kv * t, s))
        return self._unfold(o.matmul(rows, self._fold(o.wide(v), kv)), (b, t, h, v.shape[3]), kv)

    def gradients(self, dy: A, q: A, k: A, v: A, probabilities: A, scale: float) -> tuple[A, A, A]:
        """Of q, k and v, float32 or wider.

        dv = P^T dy; dS = scale P (dP - sum(P dP)) with dP = dy v^T; dq = dS k; dk = dS^T q. Source: Dao et al. 2022,
        appendix B.2.
        """
        o, kv = self._ops, k.shape[2]
        rows = (k.shape[0] * kv, q.shape[2] // kv * q.shape[1], k.shape[1])
        wide_dy, wide_q, wide_k, wide_v = (self._fold(o.wide(x), kv) for x in (dy, q, k, v))
        p = o.reshape(probabilities, rows)
        dp = o.matmul(wide_dy, wide_v, transpose_b=True)
        inner = o.sum(o.multiply(dp, p), axis=-1, keepdims=True)
        ds = o.multiply(o.multiply(p, o.subtract(dp, inner)), scale)
        dq = self._unfold(o.matmul(ds, wide_k), q.shape, kv)
        dk = self._unfold(o.matmul(ds, wide_q, transpose_a=True), k.shape, kv)
        return dq, dk, self._unfold(o.matmul(p, wide_dy, transpose_a=True), v.shape, kv)

    def causal(self, queries: int, keys: int, offset: int) -> A:
        """Query i sees key j where j <= offset + i: bool (queries, keys)."""
        o = self._ops
        last = o.reshape(o.add(o.arange(queries), offset), (queries, 1))
        return o.less_equal(o.arange(keys), last)

    def _fold(self, x: A, kv: int) -> A:
        """(B, T, H, d) to (B * K, H / K * T, d)."""
        o, (b, t, h, d) = self._ops, x.shape
        split = o.transpose(o.reshape(x, (b, t, kv, h // kv, d)), (0, 2, 3, 1, 4))
        return o.reshape(split, (b * kv, h // kv * t, d))

    def _unfold(self, x: A, shape: tuple[int, ...], kv: int) -> A:
        """(B * K, H / K * T, d) back to `shape`, (B, T, H, d)."""
        o, (b, t, h, d) = self._ops, shape
        split = o.transpose(o.reshape(x, (b, kv, h // kv, t, d)), (0, 3, 1, 2, 4))
        return o.reshape(split, (b, t, h, d))
