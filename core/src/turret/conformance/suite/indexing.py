"""Cases of the indexing slot."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from turret.spi import DTYPES, DType, Host, Shape

from ..bench import Bench
from ..case import Case, call_case
from ..given import Call, Draw, Given, View
from ..oracle import indexing as oracle
from . import indexing_writes
from .layout import bits
from .naming import sizes, variant
from .views import VIEWS

TABLES: tuple[tuple[Shape, Shape], ...] = (
    ((9, 5), ()),
    ((9, 5), (1,)),
    ((9, 5), (63,)),
    ((9, 5), (2, 3, 4)),
    ((9,), (7,)),
    ((9,), (2, 3)),
    ((9,), ()),
    ((9, 2, 3), (4,)),
    ((9, 2, 3), (4, 2)),
    ((1, 5), (6,)),
    ((2049, 3), (1500,)),
    ((1000, 65), (65,)),
    ((9, 5), (0,)),
    ((9, 5), (2, 0)),
    ((9, 0), (3,)),
    ((9, 0, 4), (3, 2)),
)
LASTS: tuple[Shape, ...] = ((7,), (1,), (4, 1), (2, 3, 9), (2, 3, 4, 5), (0, 4), (2, 0, 4), (1025, 33))


def cases() -> Iterator[Case]:
    """Reading rows and elements: shapes, ends, repeats, dtypes, views; then the writes."""
    for shape, ids in TABLES:
        yield _rows(shape, ids)
    for dtype in DTYPES:
        yield _rows((9, 5), (4, 3), dtype=dtype)
        yield _last((5, 65), dtype=dtype)
    for view in VIEWS:
        yield _rows((9, 6), (11,), view=view)
        yield _rows((9, 4), (3, 4), ids_view=view)
        yield _last((6, 34), view=view)
        yield _last((5, 3, 9), ids_view=view)
    for shape in LASTS:
        yield _last(shape)
    yield Case(id="indexing/gather-rows/same-row-f32", body=_same_row, kind="forward")
    yield Case(id="indexing/gather-rows/in-order-is-a-copy-f32", body=_in_order, kind="forward")
    yield from indexing_writes.cases()


def _rows(
    shape: Shape, ids: Shape, *, dtype: DType = "float32", view: View = "whole", ids_view: View = "whole"
) -> Case:
    def call(draw: Draw) -> Call:
        table, places = bits(draw, dtype, shape, view), indices(draw, ids, shape[0], ids_view)
        return Call("indexing", "gather_rows", (table, places))

    words = f"{variant(shape, dtype, view)}-ids{sizes(ids)}{'' if ids_view == 'whole' else f'-{ids_view}'}"
    return call_case(f"indexing/gather-rows/{words}", call, oracle.gather_rows, returns=(dtype,), exact=True)


def _last(shape: Shape, *, dtype: DType = "float32", view: View = "whole", ids_view: View = "whole") -> Case:
    def call(draw: Draw) -> Call:
        x, places = bits(draw, dtype, shape, view), indices(draw, shape[:-1], shape[-1], ids_view)
        return Call("indexing", "gather_last", (x, places))

    words = variant(shape, dtype, view) + ("" if ids_view == "whole" else f"-ids-{ids_view}")
    return call_case(f"indexing/gather-last/{words}", call, oracle.gather_last, returns=(dtype,), exact=True)


def indices(draw: Draw, shape: Shape, size: int, view: View = "whole") -> Given:
    """0 <= id < size; the last place and the first among them where there is room."""
    ids = draw.rng.integers(0, size, shape)
    flat = ids.reshape(-1)
    flat[:1] = size - 1
    flat[1:2] = 0
    return draw.of(flat.reshape(shape), "int32", view)


def _same_row(bench: Bench) -> None:
    """Every place may ask for the same row."""
    table = bench.draw.normal(7, 33)
    ids = bench.draw.of(np.full((5, 300), 6), "int32")
    got = bench.tools.indexing.gather_rows(bench.put(table), bench.put(ids))
    bench.exact("one row, 1500 times", got, _gathered(table.host, ids.host), "float32")


def _in_order(bench: Bench) -> None:
    """Rows in their own order are still an array of their own."""
    table = bench.draw.normal(7, 33)
    x = bench.put(table)
    got = bench.tools.indexing.gather_rows(x, bench.put(bench.draw.of(np.arange(7), "int32")))
    bench.exact("all rows", got, table.host, "float32")
    bench.tools.indexing.set_rows(
        got, bench.put(bench.draw.of([0], "int32")), bench.put(bench.draw.of(np.zeros((1, 33)))), donate=True
    )


def _gathered(table: Host, ids: Host) -> Any:
    return np.stack([table[i] for i in ids.reshape(-1)]).reshape((*ids.shape, *table.shape[1:]))
