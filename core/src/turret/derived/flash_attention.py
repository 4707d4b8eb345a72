"""Causal attention in memory linear in the query length."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Generic

from turret.spi import A, Flashed, Required

from .grouped_heads import GroupedHeads
from .ops import Ops

ROWS = 128


class DerivedFlashAttention(Generic[A]):
    """Blocks of query rows, each against all keys it can see; backward rebuilds P = exp(scores - row_max) / row_sum."""

    def __init__(self, required: Required[A]) -> None:
        self._ops = Ops(required)
        self._heads = GroupedHeads(self._ops)

    def attend(self, q: A, k: A, v: A, /, *, scale: float, offset: int) -> Flashed[A]:
        o, heads = self._ops, self._heads
        outs, maxima, sums = [], [], []
        for start, stop, keys in _blocks(q.shape[1], k.shape[1], offset):
            scores = heads.scores(o.cut(q, 1, start, stop), o.cut(k, 1, 0, keys), scale)
            seen = heads.causal(stop - start, keys, offset + start)
            probabilities, row_max, row_sum = heads.softmax(scores, seen)
            outs.append(o.like(heads.mix(probabilities, o.cut(v, 1, 0, keys)), q))
            maxima.append(o.reshape(row_max, row_max.shape[:3]))
            sums.append(o.reshape(row_sum, row_sum.shape[:3]))
        join = o.concatenate
        return Flashed(join(outs, axis=1), join(maxima, axis=2), join(sums, axis=2))

    def attend_vjp(self, dy: A, q: A, k: A, v: A, saved: Flashed[A], /, *, scale: float, offset: int) -> tuple[A, A, A]:
        o, heads, dqs = self._ops, self._heads, []
        wide = o.dtype_of(o.wide(k))
        dk, dv = o.full(k.shape, 0.0, dtype=wide), o.full(v.shape, 0.0, dtype=wide)
        for start, stop, keys in _blocks(q.shape[1], k.shape[1], offset):
            rows, kept_k, kept_v = o.cut(q, 1, start, stop), o.cut(k, 1, 0, keys), o.cut(v, 1, 0, keys)
            probabilities = self._rebuilt(rows, kept_k, saved, start, scale, offset)
            part = heads.gradients(o.cut(dy, 1, start, stop), rows, kept_k, kept_v, probabilities, scale)
            dqs.append(part[0])
            unseen = [(0, 0), (0, k.shape[1] - keys), (0, 0), (0, 0)]
            dk, dv = o.add(dk, o.pad(part[1], unseen)), o.add(dv, o.pad(part[2], unseen))
        return o.like(o.concatenate(dqs, axis=1), q), o.like(dk, k), o.like(dv, v)

    def _rebuilt(self, q: A, k: A, saved: Flashed[A], start: int, scale: float, offset: int) -> A:
        o, heads, queries = self._ops, self._heads, q.shape[1]
        row_max, row_sum = (
            o.reshape(o.cut(x, 2, start, start + queries), (*x.shape[:2], queries, 1))
            for x in (saved.row_max, saved.row_sum)
        )
        weights = o.exp(o.subtract(heads.scores(q, k, scale), row_max))
        seen = heads.causal(queries, k.shape[1], offset + start)
        return o.where(seen, o.divide(weights, row_sum), 0.0)


def _blocks(queries: int, keys: int, offset: int) -> Iterator[tuple[int, int, int]]:
    """First and last query of each block, and how many keys it can see; one empty block where there is no query."""
    for start in range(0, max(queries, 1), ROWS):
        stop = min(start + ROWS, queries)
        yield start, stop, max(1, min(keys, offset + stop))
