"""The causal attention slot."""

from __future__ import annotations

from collections import Counter

from turret.derived.causal_attention import DerivedCausalAttention
from turret.spi import Required

from .arrays import Rest, X, dense, kernel_ready
from .kernels import attention
from .kernels.intrinsics import PANEL
from .kernels.product import ROWS
from .memory import empty
from .products import FLOPS
from .threads import POOL


class CpuCausalAttention:
    """One head at a time with all of it in cache; keys behind the diagonal cost nothing."""

    def __init__(self, required: Required[X], calls: Counter[str]) -> None:
        self._rest = Rest("causal_attention", DerivedCausalAttention(required), calls)

    def attend(self, q: X, k: X, v: X, /, *, scale: float, offset: int) -> tuple[X, X]:
        if not kernel_ready(q):
            return self._rest().attend(q, k, v, scale=scale, offset=offset)
        batch, queries, heads, d = q.shape
        _, keys, kv_heads, _ = k.shape
        out, p = empty(q.shape), empty((batch, heads, queries, keys))
        padded, width = _padded(keys), _padded(d)
        scratch = POOL.scratch(ROWS * PANEL + padded + width + padded * d + keys * width)
        sizes = batch, queries, keys, heads, kv_heads, d, offset
        work = p.size * (2 * d / FLOPS + 0.6)
        POOL.run(
            attention.attend,
            work,
            dense(q),
            dense(k),
            dense(v),
            out,
            p,
            *sizes,
            float(scale),
            scratch,
            scratch.shape[1],
        )
        return out, p

    def attend_vjp(self, dy: X, q: X, k: X, v: X, probabilities: X, /, *, scale: float) -> tuple[X, X, X]:
        if not kernel_ready(q):
            return self._rest().attend_vjp(dy, q, k, v, probabilities, scale=scale)
        batch, queries, heads, d = q.shape
        _, keys, kv_heads, _ = k.shape
        dq, dk, dv = (empty(x.shape) for x in (q, k, v))
        padded, width = _padded(keys), _padded(d)
        block = 2 * attention.QUERIES * (keys + attention.GAP)
        small = ROWS * PANEL + 2 * attention.QUERIES + padded + width
        scratch = POOL.scratch(small + padded * d + 3 * keys * width + 2 * queries * width + block)
        operands = dense(dy), dense(q), dense(k), dense(v), dense(probabilities), dq, dk, dv
        sizes = batch, queries, keys, heads, kv_heads, d
        work = probabilities.size * (4 * d / FLOPS + 0.6)
        POOL.run(attention.attend_vjp, work, *operands, *sizes, float(scale), scratch, scratch.shape[1])
        return dq, dk, dv


def _padded(size: int) -> int:
    return -(-size // PANEL) * PANEL
