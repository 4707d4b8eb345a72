"""Cases that hold for every slot: no result changes later, no operand is written, donation is local."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from turret.spi import Host

from ..bench import Bench, flat
from ..case import Case
from ..given import View
from ..oracle import indexing as oracle
from .giving_away import overwrite
from .row_ids import distinct, repeated
from .samples import SAMPLES, Drawing, Sample

HELD = 5
SIZES = (3, 97)
"""Rows: small, and large enough for buffers that a library keeps; neither fills a whole block."""
VIEWS: tuple[tuple[View, View], ...] = (("whole", "whole"), ("transposed", "strided"))
Read = Callable[[Any, Any], Any]


def cases() -> Iterator[Case]:
    """Kept results, own results and untouched operands of every sample; neighbours of what was donated; the host."""
    for sample in SAMPLES:
        yield _case(f"kept-results/{sample.name}", _kept(sample))
        yield _case(f"own-results/{sample.name}", _own(sample))
    for method in ("scatter_add_rows", "set_rows"):
        for view in ("offset", "strided", "transposed", "repeated"):
            yield _case(f"donated-view/{method.replace('_', '-')}-{view}", _donated_view(method, view))
        yield _case(f"donated-view/{method.replace('_', '-')}-flattened", _donated_flat(method))
    yield _case("kept-results/view-outlives-its-whole", _view_outlives)
    yield _case("kept-results/donated-result-of-each", _donated_results)
    yield _case("host/round-trip", _round_trip)
    yield _case("host/kept-while-computing", _kept_on_the_host)


def _case(words: str, body: Callable[[Bench], None]) -> Case:
    return Case(id=f"purity/{words}", body=body, kind="purity")


def _kept(sample: Sample) -> Callable[[Bench], None]:
    """Several results are held while the operation runs again with other operands; each stays what it was."""

    def body(bench: Bench) -> None:
        for size in SIZES:
            bench.context = f"{sample.name} of {size} rows, {HELD} results held"
            rounds = [_placed(bench, sample, size) for _ in range(HELD)]
            held = [flat(sample.call(bench.tools, *operands)) for operands in rounds]
            before = [[bench.get(x) for x in results] for results in held]
            for n, operands in enumerate(rounds):
                again = [bench.get(x) for x in flat(sample.call(bench.tools, *operands))]
                for was, now in zip(before[n], again, strict=True):
                    text = f"result {n + 1} was changed by later calls: alone it is {_some(now)}, held {_some(was)}"
                    bench.require(was.shape == now.shape and np.allclose(was, now, 1e-3, 1e-5, equal_nan=True), text)
            for n, results in enumerate(held):
                for was, x in zip(before[n], results, strict=True):
                    bench.same(f"result {n + 1}, looked at again", bench.get(x), was)

    return body


def _own(sample: Sample) -> Callable[[Bench], None]:
    """Results that are given away and overwritten change no operand and no other result."""

    def body(bench: Bench) -> None:
        for views in VIEWS:
            bench.context = f"{sample.name} of {views[1]} and {views[0]} operands"
            operands = _placed(bench, sample, 18, views)
            results = flat(sample.call(bench.tools, *operands))
            before = [bench.get(x) for x in results]
            bench.untouched()
            if sample.aliases:
                continue
            for n, x in enumerate(results):
                if not x.shape:
                    continue
                overwrite(bench, x)
                for other in range(n + 1, len(results)):
                    label = f"result {other + 1}, after result {n + 1} was given away"
                    bench.same(label, bench.get(results[other]), before[other])
            bench.untouched()
            again = [bench.get(x) for x in flat(sample.call(bench.tools, *operands))]
            for n, (was, now) in enumerate(zip(before, again, strict=True)):
                close = np.allclose(was, now, 1e-3, 1e-5, equal_nan=True)
                bench.require(close, f"result {n + 1} is another one after an earlier one was given away")

    return body


def _placed(bench: Bench, sample: Sample, size: int, views: tuple[View, View] = ("whole", "whole")) -> tuple[Any, ...]:
    return tuple(bench.put(given) for given in sample.operands(Drawing(bench.draw, views), size))


def _some(x: Host) -> str:
    return np.array2string(x.reshape(-1)[:3], precision=4)


def _donated_view(method: str, view: View) -> Callable[[Bench], None]:
    """A view of a larger array is donated: what lies between and around its elements stays."""

    def body(bench: Bench) -> None:
        layout, draw = bench.tools.layout, bench.draw
        shapes = {"offset": (9, 7), "strided": (6, 14), "transposed": (7, 6), "repeated": (1, 7)}
        read: dict[str, Read] = {
            "offset": lambda way, x: way.slice(x, (2, 0), (8, 7)),
            "strided": lambda way, x: way.slice(x, (0, 1), (6, 14), step=(1, 2)),
            "transposed": lambda way, x: way.transpose(x, (1, 0)),
            "repeated": lambda way, x: way.broadcast_to(x, (6, 7)),
        }
        given = draw.normal(*shapes[view])
        whole = bench.tools.storage.from_host(given.host)
        ids = distinct(draw, 4, 6) if method == "set_rows" else repeated(draw, 9, 6)
        rows = draw.normal(ids.shape[0], 7)
        want = _written(method, _view_of(view, given.host), ids.host, rows)
        base = read[view](layout, whole)
        got = getattr(bench.tools.indexing, method)(base, bench.put(ids), bench.put(rows), donate=True)
        bench.within("result", bench.get(got), want, 1e-5 * (1 + np.abs(want)))
        left = bench.tools.storage.to_host(whole)
        if view in ("offset", "strided"):
            inside = np.zeros(given.shape, bool)
            _view_of(view, inside)[...] = True
            kept, now = given.host[~inside], left[~inside]
            bench.same("what lies beside the donated view", now, kept)

    return body


def _view_of(view: View, x: Host) -> Host:
    if view == "offset":
        return x[2:8]
    if view == "strided":
        return x[:, 1::2]
    return x.T if view == "transposed" else np.broadcast_to(x, (6, 7))


def _written(method: str, base: Host, ids: Host, rows: Any) -> Host:
    truth: Host = getattr(oracle, method)(base.astype(np.float64), ids, rows.exact)
    return truth


def _donated_flat(method: str) -> Callable[[Bench], None]:
    """A pool seen in another shape is donated, while a copy of it is held."""

    def body(bench: Bench) -> None:
        tools, draw = bench.tools, bench.draw
        given = draw.normal(4, 3, 5)
        pool = tools.storage.from_host(given.host)
        copy = tools.storage.copy(pool)
        ids = distinct(draw, 5, 12)
        rows = draw.normal(5, 5)
        base = tools.layout.reshape(pool, (12, 5))
        got = getattr(tools.indexing, method)(base, bench.put(ids), bench.put(rows), donate=True)
        want = _written(method, given.host.reshape(12, 5), ids.host, rows)
        bench.within("result", bench.get(got), want, 1e-5 * (1 + np.abs(want)))
        bench.exact("the copy made before", copy, given.host, "float32")

    return body


def _view_outlives(bench: Bench) -> None:
    """A part of a result is kept and the result itself is not; its memory may not be used again."""
    tools, draw = bench.tools, bench.draw
    for size in (9, 200):
        givens = [draw.normal(size, size) for _ in range(3)]
        x = bench.put(givens[0])
        parts = [
            tools.layout.slice(tools.elementwise.add(x, x), (1, 0), (3, size)),
            tools.layout.transpose(tools.elementwise.add(x, x), (1, 0)),
            tools.layout.reshape(tools.elementwise.add(x, x), (size * size,)),
        ]
        double = givens[0].host + givens[0].host
        wants = [double[1:3], np.ascontiguousarray(double.T), double.reshape(-1)]
        for given in givens[1:]:
            other = bench.put(given)
            for _ in range(3):
                tools.storage.synchronize(tools.elementwise.multiply(other, other))
        for part, want in zip(parts, wants, strict=True):
            bench.exact("part of a sum that nobody holds", part, want, "float32")


def _donated_results(bench: Bench) -> None:
    """A result given away by one caller is not the result of another: constants and caches stay whole."""
    tools = bench.tools
    zeros = np.zeros((12, 5), np.float32)
    makers: dict[str, Callable[[], Any]] = {
        "zeros": lambda: tools.storage.full((12, 5), 0.0, dtype="float32"),
        "padding": lambda: tools.layout.pad(tools.storage.full((12, 1), 0.0, dtype="float32"), ((0, 0), (0, 4))),
        "a sum with 0": lambda: tools.elementwise.add(tools.storage.full((12, 5), 0.0, dtype="float32"), 0.0),
        "a copy": lambda: tools.storage.copy(tools.storage.full((12, 5), 0.0, dtype="float32")),
    }
    for name, make in makers.items():
        for _ in range(3):
            first, second = make(), make()
            overwrite(bench, first)
            bench.exact(f"{name}, after others were given away", second, zeros, "float32")
    counted = tools.storage.arange(12)
    overwrite(bench, tools.storage.copy(tools.storage.arange(12)))
    bench.exact("arange", counted, np.arange(12, dtype=np.int32), "int32")


def _round_trip(bench: Bench) -> None:
    """What `to_host` gave goes back by `from_host`; the three live apart."""
    storage = bench.tools.storage
    given = bench.draw.normal(64, 65)
    x = bench.put(given)
    host = storage.to_host(x)
    y = storage.from_host(host)
    host[...] = -1.0
    bench.exact("the second array", y, given.host, "float32")
    overwrite(bench, y)
    bench.exact("the first array", x, given.host, "float32")
    bench.same("the host array between them", host, np.full((64, 65), -1.0, np.float32))


def _kept_on_the_host(bench: Bench) -> None:
    """A host array from `to_host` stays, whatever its array and its like go through afterwards."""
    tools = bench.tools
    given = bench.draw.normal(64, 65)
    x = tools.elementwise.add(bench.put(given), 0.0)
    host = tools.storage.to_host(x)
    del x
    for n in range(4):
        tools.storage.synchronize(tools.elementwise.add(bench.put(bench.draw.normal(64, 65)), float(n)))
    bench.same("the host array", host, given.host)
