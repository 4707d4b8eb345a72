"""The small programs that the suite of compile runs, and how their results are judged."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from turret.spi import Toolset

from ..bench import Bench
from ..given import Given

Program = Callable[..., tuple[Any, ...]]


def mix(tools: Toolset[Any]) -> Program:
    """x * y + exp(x)."""

    def fn(x: Any, y: Any) -> tuple[Any, ...]:
        e = tools.elementwise
        return (e.add(e.multiply(x, y), e.exp(x)),)

    return fn


def mixed(x: Any, y: Any) -> Any:
    """What `mix` computes, as an oracle."""
    return x * y + np.exp(x)


def two(bench: Bench, *shape: int) -> tuple[Given, Given]:
    """Two normal arrays of one shape."""
    return bench.draw.normal(*shape), bench.draw.normal(*shape)


def ask(bench: Bench, program: Program, x: Given, y: Given) -> Any:
    """Calls a program of `mix` and compares."""
    (got,) = program(bench.put(x), bench.put(y))
    bench.close("x y + exp x", got, mixed(x.tracked, y.tracked))
    return got


def compiled(bench: Bench, fn: Program, donate: tuple[int, ...] = ()) -> Program:
    """The program that the slot makes of `fn`."""
    bench.context = f"compile.compile({fn.__name__}, donate={donate})"
    return bench.tools.compile.compile(fn, donate=donate)
