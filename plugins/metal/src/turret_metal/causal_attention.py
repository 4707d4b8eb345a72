"""The causal attention slot."""

from __future__ import annotations

import math

import mlx.core as mx

from .arrays import fold, like, wide
from .products import times_transposed, transposed_times
from .softmax import row_softmax
from .stream import Stream, X


class MetalCausalAttention:
    """One product for each key-value head: the query heads that share it become more rows, and keys are not repeated.

    On the GPU the output comes from MLX's fused kernel, which does not tell the probabilities; they are a formula
    beside it: where nobody takes a gradient they are never computed.
    """

    def __init__(self, do: Stream) -> None:
        self._do = do

    def attend(self, q: X, k: X, v: X, /, *, scale: float, offset: int) -> tuple[X, X]:
        do, (b, t, h, _), (_, s, kv, _) = self._do, q.shape, k.shape
        seen = self._seen(t, s, offset)
        product = times_transposed(do, _fold(do, wide(do, q), kv), _fold(do, wide(do, k), kv))
        scores = do(mx.multiply, do(mx.reshape, product, (b, h, t, s)), scale)
        probabilities = row_softmax(do, do(mx.where, seen, scores, -math.inf))
        if do.on_gpu:
            heads = (do(mx.swapaxes, x, 1, 2) for x in (q, k, v))
            fused = do(mx.fast.scaled_dot_product_attention, *heads, scale=scale, mask=seen)
            return do(mx.swapaxes, fused, 1, 2), probabilities
        rows = do(mx.reshape, probabilities, (b * kv, h // kv * t, s))
        mixed = _unfold(do, do(mx.matmul, rows, _fold(do, wide(do, v), kv)), q.shape, kv)
        return like(do, mixed, q), probabilities

    def attend_vjp(self, dy: X, q: X, k: X, v: X, probabilities: X, /, *, scale: float) -> tuple[X, X, X]:
        do, kv = self._do, k.shape[2]
        wide_dy, wide_q, wide_k, wide_v = (_fold(do, wide(do, x), kv) for x in (dy, q, k, v))
        p = do(mx.reshape, probabilities, (k.shape[0] * kv, q.shape[2] // kv * q.shape[1], k.shape[1]))
        dp = times_transposed(do, wide_dy, wide_v)
        inner = fold(do, mx.sum, do(mx.multiply, dp, p), axis=-1, keepdims=True)
        ds = do(mx.multiply, do(mx.multiply, p, do(mx.subtract, dp, inner)), scale)
        dk = transposed_times(do, ds, wide_q)
        dv = transposed_times(do, p, wide_dy)
        made = ((do(mx.matmul, ds, wide_k), q), (dk, k), (dv, v))
        dq, dk, dv = (like(do, _unfold(do, x, model.shape, kv), model) for x, model in made)
        return dq, dk, dv

    def _seen(self, queries: int, keys: int, offset: int) -> X:
        """Query i sees key j where j <= offset + i: bool (queries, keys)."""
        do = self._do
        last = do(mx.reshape, do(mx.arange, offset, offset + queries, dtype=mx.int32), (queries, 1))
        return do(mx.less_equal, do(mx.arange, keys, dtype=mx.int32), last)


def _fold(do: Stream, x: X, kv: int) -> X:
    """(B, T, H, d) to (B * K, H / K * T, d)."""
    b, t, h, d = x.shape
    split = do(mx.transpose, do(mx.reshape, x, (b, t, kv, h // kv, d)), (0, 2, 3, 1, 4))
    return do(mx.reshape, split, (b * kv, h // kv * t, d))


def _unfold(do: Stream, x: X, shape: tuple[int, ...], kv: int) -> X:
    """(B * K, H / K * T, d) back to `shape`, (B, T, H, d)."""
    b, t, h, d = shape
    split = do(mx.transpose, do(mx.reshape, x, (b, kv, h // kv, t, d)), (0, 3, 1, 2, 4))
    return do(mx.reshape, split, (b, t, h, d))
