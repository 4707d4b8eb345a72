"""The causal attention slot."""

from __future__ import annotations

from collections import Counter

import numpy as np

from turret.derived.causal_attention import DerivedCausalAttention
from turret.spi import Required

from .arrays import Rest, X, dense, kernel_ready
from .kernels import attention
from .kernels.intrinsics import PANEL
from .kernels.product import ROWS
from .memory import empty
from .products import FLOPS
from .threads import POOL

Operands = tuple[X | int, ...]


class CpuCausalAttention:
    """One head at a time with all of it in cache; keys behind the diagonal cost nothing."""

    def __init__(self, required: Required[X], calls: Counter[str]) -> None:
        self._rest = Rest("causal_attention", DerivedCausalAttention(required), calls)

    def attend(self, q: X, k: X, v: X, /, *, scale: float, offset: int) -> tuple[X, X]:
        if not kernel_ready(q):
            return self._rest().attend(q, k, v, scale=scale, offset=offset)
        batch, queries, heads, d = q.shape
        _, keys, kv_heads, _ = k.shape
        taken = [heads_of(x) for x in (q, k, v)]
        out, p = empty(q.shape), empty((batch, heads, queries, keys))
        padded, width = _padded(keys), _padded(d)
        scratch = POOL.scratch(ROWS * PANEL + padded + width + padded * d + keys * width)
        sizes = batch, queries, keys, heads, kv_heads, d, offset
        work = p.size * (2 * d / FLOPS + 0.6)
        POOL.run(
            attention.attend,
            work,
            *(address_of_heads(x) for x in taken),
            out,
            p,
            *sizes,
            float(scale),
            scratch,
            scratch.shape[1],
            *strides_of(taken),
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
        taken = [heads_of(x) for x in (q, k, v)]
        operands: Operands = (dense(dy), *map(address_of_heads, taken), dense(probabilities), dq, dk, dv)
        sizes = batch, queries, keys, heads, kv_heads, d
        work = probabilities.size * (4 * d / FLOPS + 0.6)
        strides = strides_of(taken)
        POOL.run(attention.attend_vjp, work, *operands, *sizes, float(scale), scratch, scratch.shape[1], *strides)
        return dq, dk, dv


def _padded(size: int) -> int:
    return -(-size // PANEL) * PANEL


def heads_of(x: X) -> X:
    """x (B, T, H, d) itself where each token's heads lie together, as in a slice of a joint projection; else a copy."""
    d = x.shape[3]
    fits = x.strides[3] == 4 and x.strides[2] == 4 * d and x.flags.aligned and not x.strides[1] % 4
    return x if fits else np.array(x, order="C")


def address_of_heads(x: X) -> int:
    """Where x begins; x need not be contiguous."""
    address: int = x.__array_interface__["data"][0]
    return address


def strides_of(arrays: list[X]) -> list[int]:
    """Elements between batches and between tokens, of each array."""
    return [step // 4 for x in arrays for step in x.strides[:2]]
