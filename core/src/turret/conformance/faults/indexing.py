"""Wrong rows."""

from __future__ import annotations

from typing import Any

import numpy as np

from turret.spi import Host

from .fault import Broken, Tools, Views, edited, fault, new

BIG_TABLE = 256


@fault(
    name="gather-big-table-repeats-group-leader",
    slot="indexing",
    url="https://github.com/pytorch/executorch/issues/22333",
    report=(
        "Embedding lookup on Vulkan was wrong exactly when the table passed 16384 rows: every group of four output"
        " rows held the first row's values shifted by one element each."
    ),
    summary=(
        "indexing.gather_rows on a 2-d table of more than 256 rows fills output rows 4j+1, 4j+2, 4j+3 with output "
        "row 4j rolled by 1, 2, 3 elements; smaller tables are right."
    ),
)
def group_leader(good: Any, tools: Tools) -> Broken:
    def gather_rows(table: Any, ids: Any, /) -> Any:
        result = good.gather_rows(table, ids)
        if len(table.shape) != 2 or table.shape[0] <= BIG_TABLE:
            return result

        def repeat(host: Host) -> Host:
            rows = host.reshape(-1, host.shape[-1])
            rolled = [np.roll(rows[n - n % 4], n % 4) for n in range(len(rows))]
            return np.asarray(rolled, host.dtype).reshape(host.shape)

        return edited(tools.storage, result, repeat)

    return Broken(good, gather_rows=gather_rows)


@fault(
    name="gather-last-uses-first-batch-row",
    slot="indexing",
    url="https://github.com/tillahoffmann/jax-mps/issues/60",
    report=(
        "take_along_axis with batched indices on MPS read every row's value from batch row 0, so only the first "
        "result was right."
    ),
    summary=(
        "indexing.gather_last for x of rank 2 or more looks up x[0, ..., ids] for all rows of the first axis; a "
        "batch of one is right."
    ),
)
def first_batch_row(good: Any, tools: Tools) -> Broken:
    def gather_last(x: Any, ids: Any, /) -> Any:
        if len(x.shape) < 2 or x.shape[0] < 2:
            return good.gather_last(x, ids)
        host = tools.storage.to_host(x)
        return good.gather_last(new(tools.storage, np.broadcast_to(host[:1], host.shape), x), ids)

    return Broken(good, gather_last=gather_last)


@fault(
    name="scatter-add-loses-duplicates",
    slot="indexing",
    url="https://github.com/apache/mxnet/issues/11899",
    report=(
        "The gradient of a scatter with repeated indices kept one contribution instead of the sum and varied from "
        "run to run."
    ),
    summary="indexing.scatter_add_rows adds only the last row of each repeated id; unique ids are right.",
)
def last_duplicate(good: Any, tools: Tools) -> Broken:
    storage = tools.storage

    def scatter_add_rows(base: Any, ids: Any, rows: Any, /, *, donate: bool = False) -> Any:
        host = storage.to_host(ids)
        kept = [n for n, each in enumerate(host) if each not in host[n + 1 :]]
        if len(kept) == len(host):
            return good.scatter_add_rows(base, ids, rows, donate=donate)
        alone = new(storage, storage.to_host(rows)[kept], rows)
        return good.scatter_add_rows(base, new(storage, host[kept], ids), alone, donate=donate)

    return Broken(good, scatter_add_rows=scatter_add_rows)


@fault(
    name="scatter-add-order-changes",
    slot="indexing",
    url="https://github.com/pytorch/pytorch/issues/161029",
    report=(
        "index_add on MPS uses atomics, so repeated calls on the same data differ in the last bits even in "
        "deterministic mode."
    ),
    summary=(
        "indexing.scatter_add_rows processes the rows forwards and backwards on alternate calls, so float sums of "
        "three or more repeated ids differ in the last bits between identical calls."
    ),
)
def alternating_order(good: Any, tools: Tools) -> Broken:
    storage = tools.storage
    calls: list[None] = []

    def scatter_add_rows(base: Any, ids: Any, rows: Any, /, *, donate: bool = False) -> Any:
        calls.append(None)
        if len(calls) % 2:
            return good.scatter_add_rows(base, ids, rows, donate=donate)
        ids, rows = (edited(storage, x, lambda host: host[::-1]) for x in (ids, rows))
        return good.scatter_add_rows(base, ids, rows, donate=donate)

    return Broken(good, scatter_add_rows=scatter_add_rows)


@fault(
    name="gather-from-strided-table",
    slot="indexing",
    views=True,
    url="https://github.com/huggingface/candle/pull/3706",
    report=(
        "index_select and gather on Metal read strided sources with the wrong rank and returned wrong rows "
        "silently; contiguous sources were right."
    ),
    summary=(
        "indexing.gather_rows on a table that came out of layout.transpose or a strided layout.slice reads rows of"
        " the packed storage."
    ),
)
def packed_table(good: Any, tools: Tools, views: Views) -> Broken:
    def gather_rows(table: Any, ids: Any, /) -> Any:
        view = views.about(table)
        misread = view is not None and (view.method == "transpose" or view.is_strided)
        return good.gather_rows(views.packed(tools.storage, table) if misread else table, ids)

    return Broken(good, gather_rows=gather_rows)


FAULTS = (
    group_leader,
    first_batch_row,
    last_duplicate,
    alternating_order,
    packed_table,
)
