"""A small mixed workload with its truth, for cases that only want to know whether a backend is still well."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from turret.spi import Host, Toolset

from .given import Draw, Given
from .oracle import activation, attention, elementwise, indexing, linear, matmul, normalization, reduction, softmax
from .tolerances import compare
from .tracked import allowance, value_of

Run = Callable[..., Any]


@dataclass(frozen=True, slots=True)
class Part:
    """One call: its slot run on native arrays, and the oracle run on tracked ones."""

    label: str
    inputs: tuple[Given, ...]
    run: Run
    truth: Run


class Workload:
    """Calls on nine slots with inputs of their own for each number; nothing in it is shared between threads."""

    def __init__(self, number: int = 0) -> None:
        draw = Draw(number, "workload")
        x, w, b = draw.normal(17, 40), draw.normal(24, 40), draw.normal(24)
        q, k, v = (draw.normal(2, 6, heads, 8) for heads in (4, 2, 2))
        rows, table = draw.integers(9, low=0, high=17), draw.normal(9, 40)
        self.parts = (
            Part("matmul", (x, w), lambda t, a, c: t.matmul.matmul(a, c, transpose_b=True), _times_transposed),
            Part("linear", (x, w, b), lambda t, *a: t.linear.linear(*a), linear.linear),
            Part("softmax", (x,), lambda t, a: t.softmax.softmax(a), softmax.softmax),
            Part("rms_norm", (x, table), _norm, lambda a, _: normalization.rms_norm(a, a[0], eps=1e-5)[0]),
            Part("gelu", (x,), lambda t, a: t.activation.gelu(a, form="erf"), _gelu),
            Part("sum", (x,), lambda t, a: t.reduction.sum(a, axis=(1,)), _sum),
            Part("exp", (w,), lambda t, a: t.elementwise.multiply(t.elementwise.exp(a), 0.5), _half_exp),
            Part("attention", (q, k, v), _attend, lambda *a: attention.attend(*a, scale=0.3, offset=0)[0]),
            Part("gather_rows", (x, rows), lambda t, *a: t.indexing.gather_rows(*a), indexing.gather_rows),
            Part("scatter_add_rows", (x, rows, table), _scatter, indexing.scatter_add_rows),
        )

    def run(self, tools: Toolset[Any]) -> list[Host]:
        """Every result on the host; host to device and back at every call."""
        put, get = tools.storage.from_host, tools.storage.to_host
        return [get(part.run(tools, *(put(x.host, dtype=x.dtype) for x in part.inputs))) for part in self.parts]

    @cached_property
    def _truths(self) -> list[Any]:
        return [part.truth(*(x.tracked for x in part.inputs)) for part in self.parts]

    def wrong(self, got: list[Host], *, flushes: bool) -> str | None:
        """What is wrong with results of `run`, or None."""
        for part, truth, host in zip(self.parts, self._truths, got, strict=True):
            want = value_of(truth).astype(np.float64)
            if host.shape != want.shape or host.dtype != np.float32:
                return f"{part.label}: got {host.dtype} {host.shape}, wanted float32 {want.shape}"
            verdict = compare(host, want, allowance(truth, "float32", flushes=flushes), "float32")
            if not verdict.good:
                return (
                    f"{part.label}: at {verdict.worst} got {verdict.got!r}, wanted {verdict.want!r} within "
                    f"{verdict.allowed:.3g}"
                )
        return None


def check(tools: Toolset[Any], number: int = 0) -> str | None:
    """Runs the workload: what is wrong, or None."""
    work = Workload(number)
    return work.wrong(work.run(tools), flushes=tools.storage.device().flushes_subnormals)


def _times_transposed(a: Any, b: Any) -> Any:
    return matmul.matmul(a, b, transpose_b=True)


def _norm(tools: Toolset[Any], x: Any, table: Any) -> Any:
    weight = tools.layout.reshape(tools.layout.slice(x, (0, 0), (1, x.shape[1])), (x.shape[1],))
    return tools.normalization.rms_norm(x, weight, eps=1e-5)[0]


def _gelu(x: Any) -> Any:
    return activation.gelu(x, form="erf")


def _sum(x: Any) -> Any:
    return reduction.sum(x, axis=(1,))


def _half_exp(x: Any) -> Any:
    return elementwise.exp(x) * 0.5


def _attend(tools: Toolset[Any], q: Any, k: Any, v: Any) -> Any:
    return tools.causal_attention.attend(q, k, v, scale=0.3, offset=0)[0]


def _scatter(tools: Toolset[Any], base: Any, ids: Any, rows: Any) -> Any:
    return tools.indexing.scatter_add_rows(base, ids, rows)
