"""The causal attention slot."""

from __future__ import annotations

import math

from .arrays import X, dot, like, row_max, row_sum, wide
from .library import lax
from .place import Place
from .programs import program

# Products over (B, K): the H / K query heads that share a key-value head become more rows, so keys are never repeated.
SCORES = (((3,), (3,)), ((0, 1), (0, 2)))  # (B, K, R, d) and (B, S, K, d) to (B, K, R, S)
MIX = (((3,), (1,)), ((0, 1), (0, 2)))  # (B, K, R, S) and (B, S, K, d) to (B, K, R, d)
BACK = (((3,), (2,)), ((0, 1), (0, 1)))  # (B, K, d, R) and (B, K, R, S) to (B, K, d, S)


class TpuCausalAttention:
    """softmax(scale * q k^T under the causal mask) v; the mask is -inf, so that what is unseen weighs exactly 0.

    dv = P^T dy; dS = scale P (dP - sum(P dP)) with dP = dy v^T; dq = dS k; dk = dS^T q. Source: Dao et al. 2022,
    appendix B.2.
    """

    def __init__(self, place: Place) -> None:
        self._place = place

    def attend(self, q: X, k: X, v: X, /, *, scale: float, offset: int) -> tuple[X, X]:
        return self._place.run(_attend, q, k, v, scale=float(scale), offset=offset)

    def attend_vjp(self, dy: X, q: X, k: X, v: X, probabilities: X, /, *, scale: float) -> tuple[X, X, X]:
        return self._place.run(_attend_vjp, dy, q, k, v, probabilities, scale=float(scale))


@program("scale", "offset")
def _attend(q: X, k: X, v: X, *, scale: float, offset: int) -> tuple[X, X]:
    (b, t, h, _), (_, s, kv, _) = q.shape, k.shape
    shape = (b, h, t, s)
    scores = lax.reshape(dot(_fold(wide(q), kv), wide(k), SCORES), shape) * scale
    seen = lax.broadcasted_iota("int32", shape, 3) <= lax.broadcasted_iota("int32", shape, 2) + offset
    masked = lax.select(seen, scores, lax.full_like(scores, -math.inf))
    weights = lax.exp(masked - row_max(masked))
    probabilities = weights / row_sum(weights)
    mixed = dot(lax.reshape(probabilities, (b, kv, h // kv * t, s)), wide(v), MIX)
    return like(_unfold(mixed, q.shape), q), probabilities


@program("scale")
def _attend_vjp(dy: X, q: X, k: X, v: X, probabilities: X, *, scale: float) -> tuple[X, X, X]:
    kv = k.shape[2]
    rows = _fold(wide(dy), kv)
    p = lax.reshape(probabilities, (*rows.shape[:3], k.shape[1]))
    dp = dot(rows, wide(v), SCORES)
    ds = p * (dp - row_sum(dp * p)) * scale
    dq = _unfold(dot(ds, wide(k), MIX), q.shape)
    # the small operand is the one that is turned: XLA multiplies by a turned square of scores at half the speed
    dk, dv = (
        lax.transpose(dot(lax.transpose(_fold(wide(x), kv), (0, 1, 3, 2)), y, BACK), (0, 3, 1, 2))
        for x, y in ((q, ds), (dy, p))
    )
    return like(dq, q), like(dk, k), like(dv, v)


def _fold(x: X, kv: int) -> X:
    """(B, T, H, d) to (B, K, H / K * T, d)."""
    b, t, h, d = x.shape
    split = lax.transpose(lax.reshape(x, (b, t, kv, h // kv, d)), (0, 2, 3, 1, 4))
    return lax.reshape(split, (b, kv, h // kv * t, d))


def _unfold(x: X, shape: tuple[int, ...]) -> X:
    """(B, K, H / K * T, d) back to `shape`, (B, T, H, d)."""
    (b, t, h, d), kv = shape, x.shape[1]
    split = lax.transpose(lax.reshape(x, (b, kv, h // kv, t, d)), (0, 3, 1, 2, 4))
    return lax.reshape(split, shape)
