"""Wrong pages."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from turret.spi import Host

from .fault import Broken, Tools, edited, fault, new

POOL = 8


@fault(
    name="paged-nan-leaks-from-page-tail",
    slot="paged_attention",
    url="https://github.com/vllm-project/vllm/pull/936",
    report=(
        "The paged attention kernel multiplied masked positions by zero instead of skipping them, so NaN left in "
        "the unused tail of the last page became NaN in the output."
    ),
    summary=(
        "paged_attention.attend computes probabilities correctly but sums probability * value over whole pages, so"
        " a NaN or infinity in a value row after the request's length turns its output to NaN."
    ),
)
def page_tail_weighed(good: Any, tools: Tools) -> Broken:
    storage = tools.storage

    def attend(q: Any, k_pages: Any, v_pages: Any, page_table: Any, starts: Any, /, *, page: int, scale: float) -> Any:
        result = good.attend(q, k_pages, v_pages, page_table, starts, page=page, scale=scale)
        values, table, first = (storage.to_host(x) for x in (v_pages, page_table, starts))
        group = q.shape[2] // v_pages.shape[1]

        def leak(host: Host) -> None:
            for r, row in enumerate(table):
                length = int(first[r]) + q.shape[1]
                tail = np.arange(length, -(-length // page) * page)
                rows = values[row[tail // page] * page + tail % page] if tail.size else values[:0]
                spoilt = ~np.isfinite(rows.astype(np.float64)).all(axis=0)  # (K, d)
                host[r][:, np.repeat(spoilt, group, axis=0)] = math.nan

        return edited(storage, result, leak)

    return Broken(good, attend=attend)


@fault(
    name="paged-page-id-truncated",
    slot="paged_attention",
    url="https://github.com/ROCm/ATOM/issues/702",
    report=(
        "A precompiled paged attention kernel truncated page ids to 16 bits, so once the pool grew past 65535 "
        "pages it read other requests' keys and values for good."
    ),
    summary=(
        "paged_attention.attend takes page ids modulo 8 when the pool has more than 8 pages (limit scaled down "
        "from 65536); small pools are right and append is right."
    ),
)
def truncated_ids(good: Any, tools: Tools) -> Broken:
    storage = tools.storage

    def attend(q: Any, k_pages: Any, v_pages: Any, page_table: Any, starts: Any, /, *, page: int, scale: float) -> Any:
        if k_pages.shape[0] // page > POOL:
            page_table = new(storage, storage.to_host(page_table) % POOL, page_table)
        return good.attend(q, k_pages, v_pages, page_table, starts, page=page, scale=scale)

    return Broken(good, attend=attend)


FAULTS = (page_tail_weighed, truncated_ids)
