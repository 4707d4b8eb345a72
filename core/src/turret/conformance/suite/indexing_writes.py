"""Cases of adding and setting rows: repeats, equal bits at every run, donation."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from turret.spi import DTYPES, DType, Host, Shape

from ..bench import Bench
from ..case import Case, call_case
from ..given import Call, Draw, View
from ..oracle import indexing as oracle
from .layout import bits
from .naming import SHORT, variant
from .row_ids import distinct, repeated
from .views import VIEWS

ADDED: tuple[tuple[Shape, int], ...] = (
    ((9, 5), 1),
    ((9, 5), 20),
    ((9,), 30),
    ((1, 5), 7),
    ((7, 2, 3), 12),
    ((65, 63), 33),
    ((5, 3), 3000),
    ((3, 65), 1100),
    ((1000, 4), 65),
    ((9, 5), 0),
    ((9, 0), 4),
)
SET: tuple[tuple[Shape, int], ...] = (
    ((9, 5), 1),
    ((9, 5), 9),
    ((9,), 4),
    ((1, 5), 1),
    ((7, 2, 3), 5),
    ((65, 63), 33),
    ((2049, 3), 1100),
    ((9, 5), 0),
    ((9, 0), 4),
)
HALVES: tuple[DType, ...] = ("float16", "bfloat16")


def cases() -> Iterator[Case]:
    """Shapes, dtypes, views of base, ids and rows; many repeats; what is not finite; donation of every kind."""
    for shape, count in ADDED:
        yield _added(shape, count)
    for shape, count in ADDED[1::2]:
        yield _donated("scatter_add_rows", shape, count)
    for shape, count in SET:
        yield _set(shape, count)
    for shape, count in SET[1::2]:
        yield _donated("set_rows", shape, count)
    for dtype in DTYPES:
        yield _set((9, 5), 4, dtype=dtype)
        if dtype != "float32":
            yield _donated("set_rows", (9, 5), 4, dtype=dtype)
    for narrow in ("float16", "bfloat16", "float64", "int32"):
        yield _added((9, 5), 9, dtype=narrow, once=True)
    for half in HALVES:
        yield _added((4, 5), 400, dtype=half)
    for view in VIEWS:
        yield _added((6, 8), 12, view=view)
        yield _set((6, 8), 4, view=view)
        yield _set((6, 8), 4, rows_view=view)
        yield _added((6, 8), 6, rows_view=view, once=True)
    for view in ("strided", "offset"):
        yield _set((6, 8), 4, ids_view=view)
        yield _added((6, 8), 4, ids_view=view, once=True)
    for value in (math.inf, math.nan):
        yield _not_finite(value)
    for shape, count in (((5, 3), 40), ((4, 65), 1500), ((300, 33), 2048)):
        yield _same_bits(shape, count)
    for shape, count in (((5, 3), 40), ((4, 65), 1500)):
        for donate in (False, True):
            yield _one_wins(shape, count, donate=donate)
    for method in ("scatter_add_rows", "set_rows"):
        yield _chain(method)


def _added(
    shape: Shape,
    count: int,
    *,
    dtype: DType = "float32",
    view: View = "whole",
    rows_view: View = "whole",
    ids_view: View = "whole",
    once: bool = False,
) -> Case:
    """once: distinct ids, one addition for each row."""

    def call(draw: Draw) -> Call:
        ids = distinct(draw, count, shape[0], ids_view) if once else repeated(draw, count, shape[0])
        if dtype == "int32":
            base = draw.integers(*shape, low=2**30, high=2**31, dtype=dtype, view=view)
            rows = draw.integers(count, *shape[1:], low=2**29, high=2**30, dtype=dtype, view=rows_view)
        else:
            base = draw.normal(*shape, dtype=dtype, view=view)
            rows = draw.normal(count, *shape[1:], dtype=dtype, shift=0.5, view=rows_view)
        return Call("indexing", "scatter_add_rows", (base, ids, rows))

    words = _words(shape, count, dtype, view, rows_view, ids_view)
    name = f"indexing/scatter-add-rows/{words}"
    return call_case(name, call, oracle.scatter_add_rows, returns=(dtype,), exact=dtype == "int32")


def _set(
    shape: Shape,
    count: int,
    *,
    dtype: DType = "float32",
    view: View = "whole",
    rows_view: View = "whole",
    ids_view: View = "whole",
) -> Case:
    def call(draw: Draw) -> Call:
        base, rows = bits(draw, dtype, shape, view), bits(draw, dtype, (count, *shape[1:]), rows_view)
        return Call("indexing", "set_rows", (base, distinct(draw, count, shape[0], ids_view), rows))

    name = f"indexing/set-rows/{_words(shape, count, dtype, view, rows_view, ids_view)}"
    return call_case(name, call, oracle.set_rows, returns=(dtype,), exact=True)


def _words(shape: Shape, count: int, dtype: DType, view: View, rows_view: View, ids_view: View) -> str:
    words = [variant(shape, dtype, view), f"M{count}"]
    words += [f"{name}-{each}" for name, each in (("rows", rows_view), ("ids", ids_view)) if each != "whole"]
    return "-".join(words)


def _donated(method: str, shape: Shape, count: int, *, dtype: DType = "float32") -> Case:
    """The same result as without donation, bit for bit; ids and rows are not touched."""

    def body(bench: Bench) -> None:
        draw, write = bench.draw, getattr(bench.tools.indexing, method)
        base = bits(draw, dtype, shape) if method == "set_rows" else draw.normal(*shape, dtype=dtype)
        ids = (distinct if method == "set_rows" else repeated)(draw, count, shape[0])
        rows = bits(draw, dtype, (count, *shape[1:])) if method == "set_rows" else draw.normal(count, *shape[1:])
        kept, given, places, new = (bench.put(each) for each in (base, base, ids, rows))
        plain = write(kept, places, new, donate=False)
        want = bench.get(plain)
        bench.donates(given)
        bench.exact("with donation", write(given, places, new, donate=True), want, dtype)
        bench.exact("without, looked at again", plain, want, dtype)
        if method == "set_rows":
            bench.same("without", want, oracle.set_rows(base.host, ids.host, rows.host))
        elif count:
            truth = oracle.scatter_add_rows(base.exact, ids.host, rows.exact)
            size = oracle.scatter_add_rows(np.abs(base.exact), ids.host, np.abs(rows.exact))
            bench.within("without", want, truth, (count + 1) * 2.0**-24 * size)

    check = method.replace("_", "-")
    return Case(id=f"indexing/{check}-donated/{variant(shape, dtype)}-M{count}", body=body, kind="forward")


def _not_finite(value: float) -> Case:
    """What is not finite lands on its own row alone."""

    def call(draw: Draw) -> Call:
        rows = draw.rng.standard_normal((12, 4))
        rows[3, 1], rows[7, 2] = value, -value
        ids = np.array([0, 1, 2, 3, 4, 5, 0, 1, 2, 3, 4, 5])
        return Call("indexing", "scatter_add_rows", (draw.normal(8, 4), draw.of(ids, "int32"), draw.of(rows)))

    return call_case(f"indexing/scatter-add-rows/8x4-f32-{value}", call, oracle.scatter_add_rows)


def _same_bits(shape: Shape, count: int) -> Case:
    """Sums of many repeats over several magnitudes come out with the same bits at every run."""

    def body(bench: Bench) -> None:
        draw = bench.draw
        scale = 10.0 ** draw.rng.integers(-3, 4, (count, *(1 for _ in shape[1:])))
        rows = draw.of(draw.rng.standard_normal((count, *shape[1:])) * scale)
        base, places, new = (bench.put(x) for x in (draw.normal(*shape), repeated(draw, count, shape[0]), rows))
        first = bench.get(bench.tools.indexing.scatter_add_rows(base, places, new))
        for _ in range(4):
            again = bench.tools.indexing.scatter_add_rows(base, places, new)
            bench.exact("the same sum again", again, first, "float32")

    return Case(id=f"indexing/same-bits/{variant(shape, 'float32')}-M{count}", body=body, kind="forward")


def _one_wins(shape: Shape, count: int, *, donate: bool) -> Case:
    """Where ids repeat, one of the rows wins, whole: no row is a mixture."""

    def body(bench: Bench) -> None:
        base, ids = bench.draw.normal(*shape), repeated(bench.draw, count, shape[0] - 1)
        rows = bench.draw.normal(count, *shape[1:])
        given, places, new = (bench.put(x) for x in (base, ids, rows))
        if donate:
            bench.donates(given)
        result = bench.tools.indexing.set_rows(given, places, new, donate=donate)
        got = bench.get(result)
        for row in range(shape[0]):
            candidates: Host = rows.host[ids.host == row]
            if not len(candidates):
                bench.same(f"row {row}, which no id names", got[row], base.host[row])
            else:
                whole = np.any(np.all(candidates == got[row], axis=1))
                bench.require(whole, f"row {row} is none of the {len(candidates)} rows written there")

    name = f"indexing/one-wins/{variant(shape, 'float32')}-M{count}{'-donated' if donate else ''}"
    return Case(id=name, body=body, kind="forward")


def _chain(method: str) -> Case:
    """A result donated to the next write, many times over: a cache that grows in place."""

    def body(bench: Bench) -> None:
        write = getattr(bench.tools.indexing, method)
        truth = np.zeros((40, 3), np.float32)
        x = bench.tools.storage.full((40, 3), 0.0, dtype="float32")
        for step in range(12):
            ids, rows = distinct(bench.draw, 3, 40), bench.draw.integers(3, 3, low=-9, high=9, dtype="float32")
            x = write(x, bench.put(ids), bench.put(rows), donate=True)
            truth[ids.host] = rows.host + (truth[ids.host] if method == "scatter_add_rows" else 0)
            if step == 5:
                bench.exact("half way", x, truth, "float32")
        bench.exact("after twelve donations", x, truth, "float32")

    return Case(id=f"indexing/chain/{method.replace('_', '-')}-{SHORT['float32']}", body=body, kind="forward")
