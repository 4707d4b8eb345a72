"""Truth of causal attention with grouped heads and of its derivative, every score at once.

Letters: B batch, T query length, S key length, H query heads, K key-value heads, d head size.
"""

from __future__ import annotations

import numpy as np

from .arrays import Array, quiet


@quiet
def attend(q: Array, k: Array, v: Array, /, *, scale: float, offset: int) -> tuple[Array, Array]:
    """softmax(scale q k^T) v where query i sees keys 0..offset+i: (B, T, H, d), and the probabilities (B, H, T, S).

    q: (B, T, H, d); k and v: (B, S, K, d). Source: Vaswani et al. 2017, eq. 1 and section 3.2.3; grouped heads:
    Ainslie et al. 2023, section 2.2.
    """
    e, _, row_sum = _exponentials(q, k, scale, offset)
    probabilities = e / row_sum
    return _mixed(probabilities, v), probabilities


@quiet
def attend_vjp(
    dy: Array, q: Array, k: Array, v: Array, probabilities: Array, /, *, scale: float
) -> tuple[Array, Array, Array]:
    """Gradients for q, k and v.

    With P the probabilities and dP = dy v^T: dv = P^T dy, dS = P (dP - sum(dP P)), dq = scale dS k, dk = scale dS^T q;
    dk and dv are summed over the query heads of a group. Source: derivative of Vaswani et al. 2017, eq. 1; the same in
    Dao et al. 2022, appendix B.2.
    """
    heads = q.shape[2]
    dout = _by_head(dy, heads)
    dp = dout @ np.swapaxes(_by_head(v, heads), -1, -2)
    ds = probabilities * (dp - (dp * probabilities).sum(axis=-1, keepdims=True))
    dq = scale * (ds @ _by_head(k, heads))
    dk = scale * (np.swapaxes(ds, -1, -2) @ _by_head(q, heads))
    dv = np.swapaxes(probabilities, -1, -2) @ dout
    return np.transpose(dq, (0, 2, 1, 3)), _over_groups(dk, k.shape[2]), _over_groups(dv, v.shape[2])


@quiet
def flash_attend(q: Array, k: Array, v: Array, /, *, scale: float, offset: int) -> tuple[Array, Array, Array]:
    """As `attend`: the output, and maximum and sum of exponentials of each row of scaled scores: (B, H, T).

    Source: Dao et al. 2022, section 3.1 (m and l of a row), without its blocks.
    """
    e, row_max, row_sum = _exponentials(q, k, scale, offset)
    rows = row_max.shape[:3]
    return _mixed(e / row_sum, v), row_max.reshape(rows), row_sum.reshape(rows)


@quiet
def flash_attend_vjp(
    dy: Array,
    q: Array,
    k: Array,
    v: Array,
    saved: tuple[Array, Array, Array],
    /,
    *,
    scale: float,
    offset: int,
) -> tuple[Array, Array, Array]:
    """Gradients for q, k and v. saved: what `flash_attend` returned.

    The probabilities are exp(scores - row_max) / row_sum. Source: Dao et al. 2022, appendix B.2.
    """
    row_max, row_sum = (x.reshape((*x.shape, 1)) for x in saved[1:])
    scores, seen = _scores(q, k, scale), _seen(q.shape[1], k.shape[1], offset)
    e = np.where(seen, np.exp(scores - row_max), 0.0)
    return attend_vjp(dy, q, k, v, e / row_sum, scale=scale)


def _exponentials(q: Array, k: Array, scale: float, offset: int) -> tuple[Array, Array, Array]:
    """exp(scores - maximum), 0 where not seen: (B, H, T, S), with each row's maximum and sum: (B, H, T, 1).

    Every query sees key 0, so its score may stand in for the unseen ones in the maximum.
    """
    scores, seen = _scores(q, k, scale), _seen(q.shape[1], k.shape[1], offset)
    visible = np.where(seen, scores, scores[..., :1])
    row_max = visible.max(axis=-1, keepdims=True)
    e = np.where(seen, np.exp(visible - row_max), 0.0)
    return e, row_max, e.sum(axis=-1, keepdims=True)


def _scores(q: Array, k: Array, scale: float) -> Array:
    """scale * q k^T: (B, H, T, S)."""
    heads = q.shape[2]
    return scale * (_by_head(q, heads) @ np.swapaxes(_by_head(k, heads), -1, -2))


def _seen(queries: int, keys: int, offset: int) -> Array:
    """bool (T, S): key j is seen by query i where j <= offset + i."""
    return np.arange(keys) <= offset + np.arange(queries).reshape((queries, 1))


def _mixed(probabilities: Array, v: Array) -> Array:
    """Probabilities (B, H, T, S) times v (B, S, K, d): (B, T, H, d)."""
    return np.transpose(probabilities @ _by_head(v, probabilities.shape[1]), (0, 2, 1, 3))


def _by_head(x: Array, heads: int) -> Array:
    """(B, L, K, d) to (B, H, L, d): query head h has key-value head h // (H / K)."""
    return np.transpose(np.repeat(x, heads // x.shape[2], axis=2), (0, 2, 1, 3))


def _over_groups(x: Array, kv_heads: int) -> Array:
    """(B, H, S, d) to (B, S, K, d): the sum over the query heads that share a key-value head."""
    batch, heads, keys, size = x.shape
    shared = np.transpose(x, (0, 2, 1, 3)).reshape((batch, keys, kv_heads, heads // kv_heads, size))
    return shared.sum(axis=3)
