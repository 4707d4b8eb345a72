"""The indexing slot."""

from __future__ import annotations

import math
from collections.abc import Callable

from turret.spi import Host

from .arrays import X, like, wide
from .library import lax
from .place import Place
from .programs import program

TRUSTED = lax.GatherScatterMode.PROMISE_IN_BOUNDS


class TpuIndexing:
    """Rows are added in the order of the indices. An index outside its axis is the caller's broken promise."""

    def __init__(self, place: Place) -> None:
        self._place = place

    def gather_rows(self, table: X, ids: X, /) -> X:
        return self._place.run(gather_rows, table, ids)

    def gather_last(self, x: X, ids: X, /) -> X:
        return self._place.run(gather_last, x, ids)

    def scatter_add_rows(self, base: X, ids: X, rows: X, /, *, donate: bool = False) -> X:
        given = donate and base is not rows and base is not ids
        return self._place.run(_add_rows_into if given else _add_rows, base, ids, rows)

    def set_rows(self, base: X, ids: X, rows: X, /, *, donate: bool = False) -> X:
        given = donate and base is not rows and base is not ids
        return self._place.run(_set_rows_into if given else _set_rows, base, ids, rows)


@program()
def gather_rows(table: X | Host, ids: X) -> X:
    if 0 in ids.shape:
        return lax.full((*ids.shape, *table.shape[1:]), 0, table.dtype)
    numbers = lax.GatherDimensionNumbers(
        offset_dims=tuple(range(ids.ndim, ids.ndim + table.ndim - 1)), collapsed_slice_dims=(0,), start_index_map=(0,)
    )
    return lax.gather(table, lax.expand_dims(ids, (ids.ndim,)), numbers, (1, *table.shape[1:]), mode=TRUSTED)


@program()
def gather_last(x: X, ids: X) -> X:
    if 0 in ids.shape:
        return lax.full(ids.shape, 0, x.dtype)
    batch = tuple(range(ids.ndim))
    numbers = lax.GatherDimensionNumbers(
        offset_dims=(), collapsed_slice_dims=(ids.ndim,), start_index_map=(ids.ndim,),
        operand_batching_dims=batch, start_indices_batching_dims=batch,
    )  # fmt: skip
    return lax.gather(x, lax.expand_dims(ids, (ids.ndim,)), numbers, (1,) * x.ndim, mode=TRUSTED)


Write = Callable[[X, X, X], X]


def _add(base: X, ids: X, rows: X) -> X:
    return like(_scatter(lax.scatter_add, wide(base), ids, wide(rows)), base)


def _set(base: X, ids: X, rows: X) -> X:
    return _scatter(lax.scatter, base, ids, rows)


def _scatter(write: Callable[..., X], base: X, ids: X, rows: X) -> X:
    if not math.prod(rows.shape):
        return base
    numbers = lax.ScatterDimensionNumbers(
        update_window_dims=tuple(range(1, rows.ndim)), inserted_window_dims=(0,), scatter_dims_to_operand_dims=(0,)
    )
    return write(base, lax.expand_dims(ids, (1,)), rows, numbers, mode=TRUSTED)


_add_rows, _set_rows = program()(_add), program()(_set)
_add_rows_into, _set_rows_into = program(donate=("base",))(_add), program(donate=("base",))(_set)
