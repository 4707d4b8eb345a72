"""The causal attention slot."""

from __future__ import annotations

import math

import numpy as np

from .arrays import X, add, div, dot, less_equal, like, mul, row_max, row_sum, sub, wide
from .library import lax
from .place import Place
from .programs import program

# Products over (B, K): the H / K query heads that share a key-value head become more rows, so keys are never repeated.
SCORES = (((3,), (3,)), ((0, 1), (0, 2)))  # (B, K, R, d) and (B, S, K, d) to (B, K, R, S)
MIX = (((3,), (1,)), ((0, 1), (0, 2)))  # (B, K, R, S) and (B, S, K, d) to (B, K, R, d)
BACK = (((3,), (2,)), ((0, 1), (0, 1)))  # (B, K, d, R) and (B, K, R, S) to (B, K, d, S)

HALVED = 64  # queries from which on the first half of them is multiplied by the keys it sees, and by no others


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
    t, s = q.shape[1], k.shape[1]
    half, seen = t // 2, offset + t // 2
    if t < HALVED or seen >= s:
        return _attend_all(q, k, v, scale, offset)
    first, some = _attend_all(_rows(q, 0, half), _rows(k, 0, seen), _rows(v, 0, seen), scale, offset)
    second, rest = _attend_all(_rows(q, half, t), k, v, scale, seen)
    unseen = ((0, 0, 0), (0, 0, 0), (0, 0, 0), (0, s - seen, 0))
    some = lax.pad(some, np.zeros((), some.dtype), unseen)
    return lax.concatenate((first, second), 1), lax.concatenate((some, rest), 2)


def _attend_all(q: X, k: X, v: X, scale: float, offset: int) -> tuple[X, X]:
    (b, t, h, _), (_, s, kv, _) = q.shape, k.shape
    shape = (b, h, t, s)
    scores = mul(lax.reshape(dot(_fold(wide(q), kv), wide(k), SCORES), shape), scale)
    seen = less_equal(lax.broadcasted_iota("int32", shape, 3), add(lax.broadcasted_iota("int32", shape, 2), offset))
    masked = lax.select(seen, scores, lax.full_like(scores, -math.inf))
    weights = lax.exp(sub(masked, row_max(masked)))
    probabilities = div(weights, row_sum(weights))
    mixed = dot(lax.reshape(probabilities, (b, kv, h // kv * t, s)), wide(v), MIX)
    return like(_unfold(mixed, q.shape), q), probabilities


@program("scale")
def _attend_vjp(dy: X, q: X, k: X, v: X, probabilities: X, *, scale: float) -> tuple[X, X, X]:
    t, s = q.shape[1], k.shape[1]
    if t < HALVED or t != s:
        return _narrow(_pull(dy, q, k, v, probabilities, scale), (q, k, v))
    # What the first half of the queries weighs of the last keys. In one program with the forward pass this is its
    # padding, and XLA leaves neither the question nor the other answer in the program.
    corner = lax.slice(probabilities, (0, 0, 0, t // 2), (*probabilities.shape[:2], t // 2, s))
    weighed = lax.reduce_or(lax.ne(corner, lax.full_like(corner, 0)), (0, 1, 2, 3))
    gradients = lax.cond(
        weighed,
        lambda: _pull(dy, q, k, v, probabilities, scale),
        lambda: _pull_halves(dy, q, k, v, probabilities, scale),
    )
    return _narrow(gradients, (q, k, v))


def _narrow(gradients: tuple[X, X, X], inputs: tuple[X, X, X]) -> tuple[X, X, X]:
    dq, dk, dv = map(like, gradients, inputs)
    return dq, dk, dv


def _pull_halves(dy: X, q: X, k: X, v: X, p: X, scale: float) -> tuple[X, X, X]:
    """The gradients where the first half of the queries weighs nothing of the last half of the keys."""
    t, half = q.shape[1], q.shape[1] // 2
    upper, lower = (lax.slice_in_dim(p, *part, axis=2) for part in ((0, half), (half, t)))
    dy1, q1, k1, v1 = (_rows(x, 0, half) for x in (dy, q, k, v))
    dq1, dk1, dv1 = _pull(dy1, q1, k1, v1, lax.slice_in_dim(upper, 0, half, axis=3), scale)
    dq2, dk2, dv2 = _pull(_rows(dy, half, t), _rows(q, half, t), k, v, lower, scale)
    rest = ((0, 0, 0), (0, t - half, 0), (0, 0, 0), (0, 0, 0))
    dk, dv = (add(lax.pad(x, np.zeros((), x.dtype), rest), y) for x, y in ((dk1, dk2), (dv1, dv2)))
    return lax.concatenate((dq1, dq2), 1), dk, dv


def _pull(dy: X, q: X, k: X, v: X, probabilities: X, scale: float) -> tuple[X, X, X]:
    """The gradients in float32."""
    kv = k.shape[2]
    rows = _fold(wide(dy), kv)
    p = lax.reshape(probabilities, (*rows.shape[:3], k.shape[1]))
    dp = dot(rows, wide(v), SCORES)
    ds = mul(mul(p, sub(dp, row_sum(mul(dp, p)))), scale)
    dq = _unfold(dot(ds, wide(k), MIX), q.shape)
    # the small operand is the one that is turned: XLA multiplies by a turned square of scores at half the speed
    dk, dv = (
        lax.transpose(dot(lax.transpose(_fold(wide(x), kv), (0, 1, 3, 2)), y, BACK), (0, 3, 1, 2))
        for x, y in ((q, ds), (dy, p))
    )
    return dq, dk, dv


def _rows(x: X, start: int, stop: int) -> X:
    """Tokens start..stop-1 of (B, T, H, d)."""
    return lax.slice_in_dim(x, start, stop, axis=1)


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
