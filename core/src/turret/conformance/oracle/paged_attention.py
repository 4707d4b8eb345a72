"""Truth of attention over pages: each request's own rows, one query after the other."""

from __future__ import annotations

import numpy as np

from .arrays import Array, quiet


def append(
    k_pages: Array, v_pages: Array, k: Array, v: Array, slots: Array, /, *, donate: bool = False
) -> tuple[Array, Array]:
    """New pools with k and v (M, K, d) at rows `slots`. `donate` is a permission this truth has no use for.

    Where slots repeat, which only page 0 allows, the last one stands.
    """
    rows = k_pages.shape[0]
    source = np.arange(rows)
    for place, slot in enumerate(slots):
        source[slot] = rows + place
    return np.concatenate([k_pages, k])[source], np.concatenate([v_pages, v])[source]


@quiet
def attend(
    q: Array, k_pages: Array, v_pages: Array, page_table: Array, starts: Array, /, *, page: int, scale: float
) -> Array:
    """q: (R, T, H, d); returns the same shape. Rows beyond a request's length are never read.

    Source: Kwon et al. 2023, section 4.1, with eq. 1 of Vaswani et al. 2017.
    """
    if 0 in q.shape:
        return q
    outputs = []
    for request in range(q.shape[0]):
        start = int(starts[request])
        length = start + q.shape[1]
        rows = [int(page_table[request, place // page]) * page + place % page for place in range(length)]
        keys, values = k_pages[rows], v_pages[rows]
        seen = range(start + 1, length + 1)
        outputs.append(np.stack([_mixed(q[request, i], keys[:n], values[:n], scale) for i, n in enumerate(seen)]))
    return np.stack(outputs)


def _mixed(q: Array, keys: Array, values: Array, scale: float) -> Array:
    """One query (H, d) over all of keys and values (S, K, d); returns (H, d)."""
    kv_heads, size = keys.shape[1:]
    grouped = q.reshape(kv_heads, q.shape[0] // kv_heads, size)
    scores = (grouped @ np.transpose(keys, (1, 2, 0))) * scale  # (K, H / K, S)
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    shares = weights / weights.sum(axis=-1, keepdims=True)
    return (shares @ np.transpose(values, (1, 0, 2))).reshape(q.shape)
