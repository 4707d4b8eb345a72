"""Wrong rows."""

from __future__ import annotations

from typing import Any

import numpy as np

from turret.spi import Host

from .fault import Broken, Tools, edited, fault, new

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


FAULTS = (group_leader, first_batch_row)
