"""Attention over pages from row gathers."""

from __future__ import annotations

from typing import Generic

from turret.spi import A, Required

from .grouped_heads import GroupedHeads
from .ops import Ops


class DerivedPagedAttention(Generic[A]):
    """Each request's pages are gathered side by side and attended as one batch of causal attention."""

    def __init__(self, required: Required[A]) -> None:
        self._ops = Ops(required)
        self._heads = GroupedHeads(self._ops)

    def append(self, k_pages: A, v_pages: A, k: A, v: A, slots: A, /, *, donate: bool) -> tuple[A, A]:
        o = self._ops
        return o.set_rows(k_pages, slots, k, donate=donate), o.set_rows(v_pages, slots, v, donate=donate)

    def attend(self, q: A, k_pages: A, v_pages: A, page_table: A, starts: A, /, *, page: int, scale: float) -> A:
        o, heads = self._ops, self._heads
        (r, t, _, _), pages = q.shape, page_table.shape[1]
        places = o.arange(pages * page)
        slots = o.add(o.reshape(o.multiply(page_table, page), (r, pages, 1)), o.arange(page))
        k, v = (o.gather_rows(pool, o.reshape(slots, (r, pages * page))) for pool in (k_pages, v_pages))
        last = o.add(o.reshape(starts, (r, 1)), o.arange(t))  # (R, T): where each query stands
        seen = o.less_equal(places, o.reshape(last, (r, 1, t, 1)))
        # a stale row may hold NaN, and a weight of 0 times NaN is NaN: such rows are dropped, not weighed
        alive = o.less_equal(places, o.reshape(o.add(starts, t - 1), (r, 1)))
        v = o.where(o.reshape(alive, (r, pages * page, 1, 1)), v, 0.0)
        probabilities, _, _ = heads.softmax(heads.scores(q, k, scale), seen)
        return o.like(heads.mix(probabilities, v), q)
