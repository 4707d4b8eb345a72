"""How the operands of a case lie in memory."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from turret.spi import FLOATS

from ..bench import Bench, flat
from ..case import Build, Case, Kind, Truth
from ..given import Given, View

VIEWS: tuple[View, ...] = ("transposed", "strided", "offset", "repeated")
Views = Mapping[str, View]
"""The layout of each operand that is not contiguous, by its name."""
WHOLE: Views = {}


def rotated(*operands: str) -> list[Views]:
    """Four choices in which every operand gets every view once, beside operands that lie otherwise."""
    count = len(VIEWS)
    return [{operand: VIEWS[(first + n) % count] for n, operand in enumerate(operands)} for first in range(count)]


def of(views: Views, operand: str) -> View:
    return views.get(operand, "whole")


def cut_out(check: str, build: Build, truth: Truth, *, kind: Kind = "forward") -> Case:
    """A float32 call all of whose arrays are cut out of the middle of larger ones, along every axis.

    A row is contiguous, but neither rows nor blocks of rows follow each other; between them lie NaN and stray integers.
    """

    def body(bench: Bench) -> None:
        call = build(bench.draw)
        bench.context = f"{call.slot}.{call.method} of arrays cut out of larger ones"
        method = getattr(getattr(bench.tools, call.slot), call.method)
        results = flat(method(*(_inside(bench, x) for x in call.arguments), **call.options))
        wants = flat(truth(*(x.tracked if isinstance(x, Given) else x for x in call.arguments), **call.options))
        bench.require(len(results) == len(wants), f"got {len(results)} results, wanted {len(wants)}")
        for n, (result, want) in enumerate(zip(results, wants, strict=True)):
            bench.close(f"result {n + 1}", result, want)

    return Case(id=f"{check}/cut-out-f32", body=body, kind=kind)


def _inside(bench: Bench, x: Any) -> Any:
    if not isinstance(x, Given):
        return x
    stray = np.nan if x.dtype in FLOATS else 1
    wide = np.full([size + 3 for size in x.shape], stray, x.host.dtype)
    wide[(slice(1, -2),) * len(x.shape)] = x.host
    stop = tuple(size + 1 for size in x.shape)
    return bench.tools.layout.slice(bench.put(Given(wide, x.dtype)), (1,) * len(stop), stop)
