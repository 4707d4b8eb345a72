"""Cases of compiled programs that are given arrays away: right values, and nothing written that was not given."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from ..bench import Bench
from ..case import Case
from ..oracle import adam
from ..tolerances import FORMATS
from .programs import compiled, mix, mixed, two


def cases() -> Iterator[Case]:
    """Donation of one, several, unused and returned arguments; a loop; an optimizer's step."""
    for name, body in (
        ("one", _donated),
        ("several", _several),
        ("unused", _unused),
        ("returned", _returned),
        ("in-a-loop", _in_a_loop),
        ("optimizer-step", _optimizer_step),
        ("undeclared-untouched", _undeclared_untouched),
    ):
        yield Case(id=f"compile/donated/{name}", body=body, kind="forward")


def _undeclared_untouched(bench: Bench) -> None:
    """Only argument 1 is given away: the others are bit-equal afterwards, at the second call too."""
    tools = bench.tools

    def fn(x: Any, y: Any, z: Any) -> tuple[Any, ...]:
        e = tools.elementwise
        return e.add(x, y), e.multiply(x, z)

    program = compiled(bench, fn, donate=(1,))
    for _ in range(2):
        x, y = two(bench, 5, 66)
        z = bench.draw.normal(5, 66, view="strided")
        given = bench.put(y)
        bench.donates(given)
        got = program(bench.put(x), given, bench.put(z))
        bench.close("sum", got[0], x.tracked + y.tracked)
        bench.close("product", got[1], x.tracked * z.tracked)
        bench.untouched()


def _donated(bench: Bench) -> None:
    program = compiled(bench, mix(bench.tools), donate=(0,))
    for _ in range(2):
        x, y = two(bench, 9, 33)
        placed = bench.put(x)
        bench.donates(placed)
        (got,) = program(placed, bench.put(y))
        bench.close("x y + exp x", got, mixed(x.tracked, y.tracked))


def _several(bench: Bench) -> None:
    """Outputs in another order than the buffers they may take."""
    tools = bench.tools

    def fn(x: Any, y: Any) -> tuple[Any, ...]:
        e = tools.elementwise
        return e.add(y, 1.0), e.add(x, y), e.negative(x)

    x, y = two(bench, 7, 31)
    placed, other = bench.put(x), bench.put(y)
    bench.donates(placed, other)
    got = compiled(bench, fn, donate=(0, 1))(placed, other)
    tx, ty = x.tracked, y.tracked
    for label, result, want in zip(("y + 1", "x + y", "-x"), got, (ty + 1.0, tx + ty, -tx), strict=True):
        bench.close(label, result, want)


def _unused(bench: Bench) -> None:
    """A donated buffer of no use to any output is no reason to fail."""
    tools = bench.tools

    def fn(x: Any, y: Any) -> tuple[Any, ...]:
        return (tools.reduction.sum(y, axis=0),)

    x, y = bench.draw.normal(3, 5), bench.draw.normal(4, 2)
    placed = bench.put(x)
    bench.donates(placed)
    (got,) = compiled(bench, fn, donate=(0,))(placed, bench.put(y))
    bench.close("sums", got, y.tracked.sum(axis=0))


def _returned(bench: Bench) -> None:
    """A donated argument may itself be an output, beside what was computed from it."""
    tools = bench.tools

    def fn(x: Any, y: Any) -> tuple[Any, ...]:
        return tools.elementwise.add(x, y), x

    x, y = two(bench, 6, 5)
    placed = bench.put(x)
    bench.donates(placed)
    got = compiled(bench, fn, donate=(0,))(placed, bench.put(y))
    bench.close("sum", got[0], x.tracked + y.tracked)
    bench.exact("x", got[1], x.host, "float32")


def _in_a_loop(bench: Bench) -> None:
    """State that is given away and comes back, as a training loop has it."""
    tools = bench.tools

    def fn(state: Any, step: Any) -> tuple[Any, ...]:
        return tools.elementwise.multiply(tools.elementwise.add(state, step), 0.5), tools.elementwise.negative(state)

    program = compiled(bench, fn, donate=(0,))
    x = bench.draw.normal(130)
    state, want = bench.put(x), x.tracked
    bench.donates(state)
    for _ in range(5):
        step = bench.draw.normal(130)
        state, old = program(state, bench.put(step))
        bench.close("the old state, negated", old, -want)
        want = (want + step.tracked) * 0.5
    bench.close("after five steps", state, want)


def _optimizer_step(bench: Bench) -> None:
    """Adam within a program, its state donated, its rates arguments: also where a gradient is not finite."""
    tools = bench.tools
    options: dict[str, Any] = {"betas": (0.9, 0.999), "eps": 1e-8, "decay": (0.1,), "max_norm": 1.0}

    def fn(p: Any, m: Any, v: Any, g: Any, lr: Any, c1: Any, c2: Any) -> tuple[Any, ...]:
        got = tools.adam.update(
            (p,), (g,), (m,), (v,), lr=lr, correction1=c1, correction2=c2, donate=True, **options
        )  # fmt: skip
        return got.params[0], got.first[0], got.second[0], got.norm, got.finite

    program, draw = compiled(bench, fn, donate=(0, 1, 2)), bench.draw
    hosts = (draw.normal(33), draw.of(np.zeros(33)), draw.of(np.zeros(33)))
    state: Any = tuple(bench.put(x) for x in hosts)
    bench.donates(*state)
    want: Any = tuple(x.tracked for x in hosts)
    for at in (1, 2, 3):
        g = draw.normal(33)
        if at == 2:
            g.host[32] = np.nan
        rates = [draw.of(np.array(x)) for x in (0.01 / at, 1 - 0.9**at, 1 - 0.999**at)]
        *state, _, finite = program(*state, bench.put(g), *(bench.put(x) for x in rates))
        lr, c1, c2 = (x.tracked for x in rates)
        made = adam.update(
            (want[0],), (g.tracked,), (want[1],), (want[2],),
            lr=lr, correction1=c1, correction2=c2, largest=FORMATS["float32"].greatest, **options,
        )  # fmt: skip
        want = (made[0][0], made[1][0], made[2][0])
        bench.exact("finite", finite, np.array(at != 2), "bool")
        for label, result, truth in zip(("parameter", "first", "second"), state, want, strict=True):
            bench.close(f"{label}, step {at}", result, truth)
