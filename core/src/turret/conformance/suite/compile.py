"""Cases of the compile slot: a compiled function is the function, at every call."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from ..bench import Bench
from ..case import Case
from ..oracle import activation, softmax
from . import compile_donation
from .programs import ask, compiled, mix, mixed, two


def cases() -> Iterator[Case]:
    """Values, shapes, several outputs, donation, what is baked in and what must not be, results that outlive a call."""
    for name, body in (
        ("one-output", _one_output),
        ("several-outputs", _several_outputs),
        ("required-slots", _required_slots),
        ("optional-slots", _optional_slots),
        ("row-writes", _row_writes),
        ("made-inside", _made_inside),
        ("integers-and-booleans", _integers),
        ("rank-0-and-empty", _small),
        ("views", _views),
    ):
        yield Case(id=f"compile/values/{name}", body=body, kind="forward")
    for name, body in (
        ("other-values", _other_values),
        ("other-shape", _other_shape),
        ("other-rank-and-back", _other_rank),
        ("unit-axis-first", _unit_axis_first),
        ("results-outlive-the-next-call", _results_outlive),
        ("fed-back", _fed_back),
        ("two-programs", _two_programs),
        ("one-function-twice", _one_function_twice),
        ("after-an-exception", _after_an_exception),
    ):
        yield Case(id=f"compile/again/{name}", body=body, kind="forward")
    for name, body in (
        ("input-as-output", _input_as_output),
        ("one-array-twice", _one_array_twice),
        ("argument-unused", _argument_unused),
        ("equal-output-is-fresh", _equal_output),
    ):
        yield Case(id=f"compile/inputs/{name}", body=body, kind="forward")
    yield from compile_donation.cases()


def _one_output(bench: Bench) -> None:
    program = compiled(bench, mix(bench.tools))
    result = program(*(bench.put(x) for x in two(bench, 2)))
    bench.require(isinstance(result, tuple) and len(result) == 1, f"got {type(result).__name__}, wanted a tuple of one")
    ask(bench, program, *two(bench, 5, 65))


def _several_outputs(bench: Bench) -> None:
    def fn(x: Any, y: Any) -> tuple[Any, ...]:
        e, r = bench.tools.elementwise, bench.tools.reduction
        return e.subtract(x, y), r.max(x, axis=1), e.less(x, y), r.sum(y, axis=0)

    x, y = two(bench, 7, 33)
    got = compiled(bench, fn)(bench.put(x), bench.put(y))
    bench.require(len(got) == 4, f"got {len(got)} outputs, wanted 4")
    tx, ty = x.tracked, y.tracked
    bench.close("difference", got[0], tx - ty)
    bench.exact("maxima", got[1], x.host.max(axis=1), "float32")
    bench.exact("comparison", got[2], x.host < y.host, "bool")
    bench.close("sums", got[3], ty.sum(axis=0))


def _required_slots(bench: Bench) -> None:
    """Matmul, layout, indexing and reduction in one program."""
    tools = bench.tools

    def fn(table: Any, ids: Any, weight: Any) -> tuple[Any, ...]:
        rows = tools.indexing.gather_rows(table, ids)
        product = tools.matmul.matmul(rows, weight, transpose_b=True)
        cut = tools.layout.slice(tools.layout.transpose(product, (1, 0)), (1, 0), (5, 4))
        return (tools.reduction.sum(cut, axis=1), tools.layout.concatenate([cut, cut], axis=0))

    table, weight = bench.draw.normal(9, 31), bench.draw.normal(6, 31)
    ids = bench.draw.integers(4, low=0, high=9)
    got = compiled(bench, fn)(bench.put(table), bench.put(ids), bench.put(weight))
    cut = (table.tracked[ids.host] @ weight.tracked.T).T[1:5]
    bench.close("sums", got[0], cut.sum(axis=1))
    bench.close("both halves", got[1], np.concatenate([cut, cut]))


def _optional_slots(bench: Bench) -> None:
    tools = bench.tools

    def fn(x: Any) -> tuple[Any, ...]:
        return tools.softmax.softmax(x), tools.activation.silu(x)

    x = bench.draw.normal(5, 65)
    got = compiled(bench, fn)(bench.put(x))
    bench.close("softmax", got[0], softmax.softmax(x.tracked))
    bench.close("silu", got[1], activation.silu(x.tracked))


def _row_writes(bench: Bench) -> None:
    """Writes into arrays made inside, which may be donated there, and into copies of an argument."""
    tools = bench.tools

    def fn(base: Any, ids: Any, rows: Any) -> tuple[Any, ...]:
        zeros = tools.storage.full((6, 3), 0.0, dtype="float32")
        added = tools.indexing.scatter_add_rows(zeros, ids, rows, donate=True)
        return added, tools.indexing.set_rows(base, ids, rows, donate=False)

    base, rows = bench.draw.normal(6, 3), bench.draw.normal(2, 3)
    ids = bench.draw.of(np.array([4, 1]), "int32")
    program = compiled(bench, fn)
    for _ in range(2):
        got = program(bench.put(base), bench.put(ids), bench.put(rows))
        placed, added = base.host.copy(), np.zeros((6, 3), np.float32)
        placed[ids.host] = added[ids.host] = rows.host
        bench.exact("rows added to zeros", got[0], added, "float32")
        bench.exact("rows set", got[1], placed, "float32")


def _made_inside(bench: Bench) -> None:
    """arange and full are legal while a program is made."""
    tools = bench.tools

    def fn(x: Any) -> tuple[Any, ...]:
        count = tools.storage.arange(65)
        return tools.elementwise.add(x, tools.storage.full((65,), 2.0, dtype="float32")), count

    x = bench.draw.normal(65)
    program = compiled(bench, fn)
    for _ in range(2):
        total, count = program(bench.put(x))
        bench.close("sum", total, x.tracked + 2.0)
        bench.exact("arange", count, np.arange(65, dtype=np.int32), "int32")


def _integers(bench: Bench) -> None:
    tools = bench.tools

    def fn(x: Any, keep: Any) -> tuple[Any, ...]:
        e = tools.elementwise
        return e.add(x, 3), e.where(keep, x, 0), e.logical_and(keep, e.less(x, 5))

    x, keep = bench.draw.integers(63, low=-9, high=9), bench.draw.booleans(63)
    got = compiled(bench, fn)(bench.put(x), bench.put(keep))
    bench.exact("sum", got[0], x.host + np.int32(3), "int32")
    bench.exact("choice", got[1], np.where(keep.host, x.host, np.int32(0)), "int32")
    bench.exact("both", got[2], keep.host & (x.host < 5), "bool")


def _small(bench: Bench) -> None:
    program = compiled(bench, mix(bench.tools))
    for shape in ((), (0, 3), (1,)):
        ask(bench, program, *two(bench, *shape))


def _views(bench: Bench) -> None:
    program = compiled(bench, mix(bench.tools))
    draw = bench.draw
    ask(bench, program, draw.normal(5, 34, view="transposed"), draw.normal(5, 34, view="strided"))
    ask(bench, program, draw.normal(5, 34, view="offset"), draw.normal(5, 34))


def _other_values(bench: Bench) -> None:
    """Nothing of the first call's arguments is baked in, the rank 0 one included."""
    tools = bench.tools

    def fn(x: Any, rate: Any) -> tuple[Any, ...]:
        return (tools.elementwise.multiply(x, rate),)

    program = compiled(bench, fn)
    for _ in range(3):
        x, rate = bench.draw.normal(5, 7), bench.draw.normal()
        (got,) = program(bench.put(x), bench.put(rate))
        bench.close("product", got, x.tracked * rate.tracked)


def _other_shape(bench: Bench) -> None:
    program = compiled(bench, mix(bench.tools))
    for shape in ((4, 5), (4, 6), (1, 65), (4, 5)):
        ask(bench, program, *two(bench, *shape))


def _other_rank(bench: Bench) -> None:
    program = compiled(bench, mix(bench.tools))
    for shape in ((6,), (2, 3), (2, 1, 3), (6,)):
        ask(bench, program, *two(bench, *shape))


def _results_outlive(bench: Bench) -> None:
    """What one call returned is not the next one's workspace."""
    program = compiled(bench, mix(bench.tools))
    got = ask(bench, program, *two(bench, 9, 33))
    before = bench.get(got)
    for _ in range(3):
        ask(bench, program, *two(bench, 9, 33))
    bench.same("a result, after three more calls", bench.get(got), before)


def _fed_back(bench: Bench) -> None:
    """A result is an argument of the next call."""
    program = compiled(bench, mix(bench.tools))
    x, y = bench.draw.uniform(6, 5, low=-2, high=-1), bench.draw.uniform(6, 5, low=0, high=0.5)
    placed, weight = bench.put(x), bench.put(y)
    want, factor = x.tracked, y.tracked
    for _ in range(4):
        (placed,) = program(placed, weight)
        want = mixed(want, factor)
    bench.close("after four rounds", placed, want)


def _two_programs(bench: Bench) -> None:
    tools = bench.tools

    def less(x: Any, y: Any) -> tuple[Any, ...]:
        return (tools.elementwise.subtract(x, y),)

    first, second = compiled(bench, mix(tools)), compiled(bench, less)
    x, y = two(bench, 8, 9)
    for _ in range(2):
        ask(bench, first, x, y)
        (got,) = second(bench.put(x), bench.put(y))
        bench.close("x - y", got, x.tracked - y.tracked)


def _one_function_twice(bench: Bench) -> None:
    """Compiling one function with and without donation gives two programs."""
    fn = mix(bench.tools)
    plain, giving = compiled(bench, fn), compiled(bench, fn, donate=(0,))
    x, y = two(bench, 6, 7)
    for program in (plain, giving, plain):
        placed = bench.put(x)
        if program is giving:
            bench.donates(placed)
        (got,) = program(placed, bench.put(y))
        bench.close("x y + exp x", got, mixed(x.tracked, y.tracked))


class Broken(Exception):
    """Raised by a function that is being compiled."""


def _after_an_exception(bench: Bench) -> None:
    """What the function raises reaches the caller, and leaves the slot working."""

    def fn(x: Any) -> tuple[Any, ...]:
        raise Broken

    program = compiled(bench, fn)
    bench.refuses(Broken, lambda: program(bench.put(bench.draw.normal(3))))
    ask(bench, compiled(bench, mix(bench.tools)), *two(bench, 3, 4))


def _input_as_output(bench: Bench) -> None:
    tools = bench.tools

    def fn(x: Any, y: Any) -> tuple[Any, ...]:
        return y, tools.elementwise.add(x, y), x

    x, y = two(bench, 4, 9)
    got = compiled(bench, fn)(bench.put(x), bench.put(y))
    bench.exact("y", got[0], y.host, "float32")
    bench.close("sum", got[1], x.tracked + y.tracked)
    bench.exact("x", got[2], x.host, "float32")


def _one_array_twice(bench: Bench) -> None:
    """One array may stand for two arguments, and be two outputs."""
    tools = bench.tools

    def fn(x: Any, y: Any) -> tuple[Any, ...]:
        total = tools.elementwise.add(x, y)
        return total, total

    x = bench.draw.normal(5, 6)
    placed = bench.put(x)
    got = compiled(bench, fn)(placed, placed)
    for label, result in zip(("first", "second"), got, strict=True):
        bench.close(label, result, x.tracked + x.tracked)


def _argument_unused(bench: Bench) -> None:
    tools = bench.tools

    def fn(x: Any, unused: Any, y: Any) -> tuple[Any, ...]:
        return (tools.elementwise.subtract(x, y),)

    x, y = two(bench, 33)
    (got,) = compiled(bench, fn)(bench.put(x), bench.put(bench.draw.integers(2, low=0, high=5)), bench.put(y))
    bench.close("difference", got, x.tracked - y.tracked)


def _unit_axis_first(bench: Bench) -> None:
    """A program first met with a leading axis of one must not believe that it always is."""
    program = compiled(bench, mix(bench.tools))
    for rows in (1, 7, 1, 2):
        ask(bench, program, *two(bench, rows, 33))


def _equal_output(bench: Bench) -> None:
    """A computed result that equals an argument is an array of its own: donating it leaves the argument alone."""
    tools = bench.tools
    x = bench.draw.normal(9, 33)

    def fn(x: Any) -> tuple[Any, ...]:
        return tools.elementwise.multiply(x, 1.0), tools.elementwise.add(x, 0.0)

    argument = bench.put(x)
    for output in compiled(bench, fn)(argument):
        bench.exact("output", output, x.host, "float32")
        ids, rows = bench.put(bench.draw.of(np.array([3]), "int32")), bench.put(bench.draw.normal(1, 33))
        tools.indexing.set_rows(output, ids, rows, donate=True)
        bench.exact("the argument, after an output was donated", argument, x.host, "float32")
