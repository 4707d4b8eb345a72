"""Wrong pages."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from turret.spi import Host

from .fault import Broken, Tools, edited, fault, new, wide

POOL = 8
CORES = 4


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


@fault(
    name="paged-stale-table-tail",
    slot="paged_attention",
    url="https://github.com/tenstorrent/vllm-tt-plugin/pull/103",
    report=(
        "Reused page-table rows kept the former owner's page ids behind the valid entries, and a consumer that "
        "used the full width wrote into another live request."
    ),
    summary=(
        "paged_attention.attend treats every non-zero entry of the page table row as valid for the last query of a"
        " request whose length ends exactly on a page border, and so sees one page too many."
    ),
)
def page_too_many(good: Any, tools: Tools) -> Broken:
    storage = tools.storage

    def attend(q: Any, k_pages: Any, v_pages: Any, page_table: Any, starts: Any, /, *, page: int, scale: float) -> Any:
        result = good.attend(q, k_pages, v_pages, page_table, starts, page=page, scale=scale)
        queries, table, first = (storage.to_host(x) for x in (q, page_table, starts))

        def see_on(host: Host) -> None:
            for r, row in enumerate(table):
                length = int(first[r]) + queries.shape[1]
                if length % page or length // page >= len(row) or not row[length // page]:
                    continue
                start = storage.from_host(np.array([length - 1 + page], np.int32))
                last, own = new(storage, queries[r : r + 1, -1:], q), new(storage, row[None], page_table)
                host[r, -1] = storage.to_host(good.attend(last, k_pages, v_pages, own, start, page=page, scale=scale))[
                    0, 0
                ]

        return edited(storage, result, see_on)

    return Broken(good, attend=attend)


@fault(
    name="paged-padding-poisons-page-zero",
    slot="paged_attention",
    url="https://github.com/sgl-project/sglang/issues/36207",
    report=(
        "Padding rows holding NaN were written to the reserved slot 0, which masked reads then multiplied by zero,"
        " so NaN reached the logits."
    ),
    summary=(
        "paged_attention.append with repeated slots in page 0 writes the sum of these rows over row 0..page-1 and "
        "attend multiplies page 0 by zero weight instead of skipping it, so NaN padding reaches outputs."
    ),
)
def poisoned_padding(good: Any, tools: Tools) -> Broken:
    storage = tools.storage

    def append(k_pages: Any, v_pages: Any, k: Any, v: Any, slots: Any, /, *, donate: bool) -> tuple[Any, Any]:
        rows = storage.to_host(slots)
        if len(set(rows.tolist())) < len(rows):
            same = rows[:, None] == rows
            k, v = (edited(storage, x, lambda host: np.einsum("mn,nkd->mkd", same, host)) for x in (k, v))
        pools = good.append(k_pages, v_pages, k, v, slots, donate=donate)
        return pools[0], pools[1]

    def attend(q: Any, k_pages: Any, v_pages: Any, page_table: Any, starts: Any, /, *, page: int, scale: float) -> Any:
        result = good.attend(q, k_pages, v_pages, page_table, starts, page=page, scale=scale)
        padded = (storage.to_host(page_table) == 0).any(axis=1)
        spoilt = ~np.isfinite(wide(storage, v_pages)[:page]).all(axis=0)  # (K, d)

        def poison(host: Host) -> None:
            host[np.ix_(padded, np.ones(host.shape[1], bool))] = np.where(
                np.repeat(spoilt, q.shape[2] // v_pages.shape[1], axis=0), math.nan, host[padded]
            )

        return edited(storage, result, poison) if spoilt.any() else result

    return Broken(good, append=append, attend=attend)


@fault(
    name="paged-fill-falls-back-a-head",
    slot="paged_attention",
    url="https://github.com/tenstorrent/tt-metal/issues/54413",
    report=(
        "The cache fill stepped forward per core, and where a core's run crossed from one head to the next the "
        "rest landed in the former head, leaving positions empty at certain prompt lengths."
    ),
    summary=(
        "paged_attention.append with M not a multiple of 4 and K > 1 writes the last M % 4 rows of heads 1 and up "
        "as zeros; head 0 and multiples of 4 are right."
    ),
)
def last_rows_empty(good: Any, tools: Tools) -> Broken:
    def append(k_pages: Any, v_pages: Any, k: Any, v: Any, slots: Any, /, *, donate: bool) -> tuple[Any, Any]:
        rest = k.shape[0] % CORES

        def lose(host: Host) -> None:
            host[-rest:, 1:] = 0

        if rest and k.shape[1] > 1:
            k, v = edited(tools.storage, k, lose), edited(tools.storage, v, lose)
        pools = good.append(k_pages, v_pages, k, v, slots, donate=donate)
        return pools[0], pools[1]

    return Broken(good, append=append)


FAULTS = (
    page_tail_weighed,
    truncated_ids,
    page_too_many,
    poisoned_padding,
    last_rows_empty,
)
