"""Reading rows and single entries by int32 indices. Index values are the caller's promise: in range, not negative."""

from __future__ import annotations

import math

from turret.spi import ShapeError

from ..graph import Native
from ..value import Tensor, record, require_indices, same_backend


def gather_rows(table: Tensor, ids: Tensor) -> Tensor:
    """table: (R, ...), ids: int32 of any shape; returns ids.shape + table.shape[1:]."""
    backend = same_backend("gather_rows", table, ids)
    require_indices("gather_rows", ids)
    shape, dtype = table.shape, table.dtype
    if not shape:
        raise ShapeError("gather_rows of a table of rank 0; wanted rows: (R, ...)")
    tools, rows = backend.tools, ids.value
    count = math.prod(ids.shape)

    def vjp(dy: Native, needs: tuple[bool, ...]) -> tuple[Native | None, ...]:
        zeros = tools.storage.full(shape, 0.0, dtype=dtype)
        flat_ids = tools.layout.reshape(rows, (count,))
        flat = tools.layout.reshape(dy, (count, *shape[1:]))
        return tools.indexing.scatter_add_rows(zeros, flat_ids, flat, donate=True), None

    return record("gather_rows", tools.indexing.gather_rows(table.value, rows), table, (table, ids), vjp)


def gather_last(x: Tensor, ids: Tensor) -> Tensor:
    """x: (..., N), ids: int32 (...); returns (...): one entry of each last row."""
    backend = same_backend("gather_last", x, ids)
    require_indices("gather_last", ids)
    if not x.shape or x.shape[:-1] != ids.shape:
        raise ShapeError(f"gather_last got x {x.shape} and ids {ids.shape}; wanted x (..., N) and ids (...)")
    tools, rows, shape, dtype = backend.tools, ids.value, x.shape, x.dtype

    def vjp(dy: Native, needs: tuple[bool, ...]) -> tuple[Native | None, ...]:
        column = tools.layout.reshape(rows, (*shape[:-1], 1))
        hot = tools.storage.cast(tools.elementwise.equal(column, tools.storage.arange(shape[-1])), dtype)
        return tools.elementwise.multiply(hot, tools.layout.reshape(dy, (*shape[:-1], 1))), None

    return record("gather_last", tools.indexing.gather_last(x.value, rows), x, (x, ids), vjp)
