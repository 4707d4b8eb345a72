"""The flash attention slot."""

from __future__ import annotations

from collections import Counter

from turret.derived.flash_attention import DerivedFlashAttention
from turret.spi import Flashed, Required

from .arrays import Rest, X, dense, kernel_ready
from .causal_attention import address_of_heads, heads_of, strides_of
from .kernels import flash
from .kernels.attention import GAP
from .kernels.intrinsics import PANEL
from .kernels.product import STRIP
from .memory import empty
from .products import FLOPS
from .threads import POOL

Operands = tuple[X | int, ...]
TILE = 192  # keys; whole panels and whole strips, and all that a block needs stays in the second-level cache
LINE = 16  # float32 in a cache line
WORTH = 0.3  # nanoseconds for what is no product, a score


class CpuFlashAttention:
    """A block of queries against one tile of keys after the other. Keys behind the diagonal cost nothing.

    Results do not depend on the number of threads. Memory beside the results: for each share of the work the keys and
    values of one head; in the VJP a tile of them, and with grouped heads dk and dv once for each head of queries.
    """

    def __init__(self, required: Required[X], calls: Counter[str]) -> None:
        self._rest = Rest("flash_attention", DerivedFlashAttention(required), calls)

    def attend(self, q: X, k: X, v: X, /, *, scale: float, offset: int) -> Flashed[X]:
        if not kernel_ready(q):
            return self._rest().attend(q, k, v, scale=scale, offset=offset)
        batch, queries, heads, d = q.shape
        _, keys, kv_heads, _ = k.shape
        taken = [heads_of(x) for x in (q, k, v)]
        found = Flashed(empty(q.shape), empty((batch, heads, queries)), empty((batch, heads, queries)))
        width, padded = _whole(d, PANEL), _whole(keys, TILE)
        rows = flash.QUERIES * (d + width + TILE + GAP)
        scratch = POOL.scratch(LINE + PANEL + rows + padded * (d + width))
        POOL.run(
            flash.attend,
            _scores(batch, heads, queries, keys, offset) * (4 * d / FLOPS + WORTH),
            *(address_of_heads(x) for x in taken),
            *found,
            batch,
            queries,
            keys,
            heads,
            kv_heads,
            d,
            offset,
            float(scale),
            TILE,
            scratch,
            scratch.shape[1],
            *strides_of(taken),
        )
        return found

    def attend_vjp(self, dy: X, q: X, k: X, v: X, saved: Flashed[X], /, *, scale: float, offset: int) -> tuple[X, X, X]:
        if not kernel_ready(q):
            return self._rest().attend_vjp(dy, q, k, v, saved, scale=scale, offset=offset)
        batch, queries, heads, d = q.shape
        _, keys, kv_heads, _ = k.shape
        taken = [heads_of(x) for x in (q, k, v)]
        dq, dk, dv = empty(q.shape), empty((batch, keys, heads, d)), empty((batch, keys, heads, d))
        width = _whole(d, PANEL)
        rows = 2 * flash.QUERIES * (d + width + TILE + GAP)
        scratch = POOL.scratch(2 * LINE + (STRIP + 1) * PANEL + queries + TILE * (2 * d + 3 * width) + rows)
        POOL.run(
            flash.attend_vjp,
            _scores(batch, heads, queries, keys, offset) * (10 * d / FLOPS + WORTH),
            dense(dy),
            *(address_of_heads(x) for x in taken),
            *map(dense, saved),
            dq,
            dk,
            dv,
            batch,
            queries,
            keys,
            heads,
            kv_heads,
            d,
            offset,
            float(scale),
            TILE,
            scratch,
            scratch.shape[1],
            *strides_of(taken),
        )
        return dq, _of_groups(dk, kv_heads), _of_groups(dv, kv_heads)


def _of_groups(x: X, kv_heads: int) -> X:
    """x (B, S, H, d) summed over the heads that share one of the K of keys."""
    batch, keys, heads, d = x.shape
    if heads == kv_heads:
        return x
    out = empty((batch, keys, kv_heads, d))
    POOL.run(flash.sum_groups, 0.15 * x.size, x, out, batch * keys * kv_heads, heads // kv_heads, d)
    return out


def _scores(batch: int, heads: int, queries: int, keys: int, offset: int) -> float:
    """How many scores are seen, about."""
    most = min(keys, offset + queries)
    return batch * heads * queries * (min(keys, offset + 1) + most) / 2


def _whole(size: int, unit: int) -> int:
    return -(-size // unit) * unit
