"""One operation of every slot that takes arrays, small enough to be run many times: what rules for all are tried on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from turret.spi import Toolset

from ..given import Draw, Given, View
from .row_ids import distinct, repeated

Tools = Toolset[Any]


class Drawing:
    """Operands of one call; every second float one is the first view, the others are the second."""

    def __init__(self, draw: Draw, views: tuple[View, View]) -> None:
        self.draw, self._views, self._drawn = draw, views, 0

    def normal(self, *shape: int) -> Given:
        self._drawn += 1
        return self.draw.normal(*shape, view=self._views[self._drawn % 2])

    def ids(self, *shape: int, size: int) -> Given:
        return self.draw.integers(*shape, low=0, high=size)


@dataclass(frozen=True, slots=True)
class Sample:
    """operands: drawn for a size. call: of the tools and the placed operands; one result or nested tuples of them.

    aliases: whether a result may share memory with an operand.
    """

    name: str
    operands: Callable[[Drawing, int], tuple[Given, ...]]
    call: Callable[..., Any]
    aliases: bool = False


def _pair(of: Drawing, n: int) -> tuple[Given, ...]:
    return of.normal(n, 2 * n), of.normal(n, 2 * n)


def _one(of: Drawing, n: int) -> tuple[Given, ...]:
    return (of.normal(n, 2 * n),)


def _square(of: Drawing, n: int) -> tuple[Given, ...]:
    return of.normal(n, n), of.normal(n, n)


def _layer(of: Drawing, n: int) -> tuple[Given, ...]:
    return of.normal(n, 2 * n), of.normal(n, 2 * n), of.draw.normal(n)


def _norm(of: Drawing, n: int) -> tuple[Given, ...]:
    return of.normal(n, 2 * n), of.draw.normal(2 * n), of.draw.normal(2 * n)


def _heads(of: Drawing, n: int) -> tuple[Given, ...]:
    return of.normal(1, n, 2, 8), of.normal(1, n, 1, 8), of.normal(1, n, 1, 8)


def _turns(of: Drawing, n: int) -> tuple[Given, ...]:
    return of.normal(1, n, 2, 8), of.draw.normal(n, 4), of.draw.normal(n, 4)


def _pages(of: Drawing, n: int) -> tuple[Given, ...]:
    """Two requests over n + 1 pages of four rows each."""
    pools = of.normal(4 * (n + 1), 1, 8), of.normal(4 * (n + 1), 1, 8)
    table = of.draw.integers(2, 3, low=1, high=n + 1)
    return of.normal(2, 2, 2, 8), *pools, table, of.draw.integers(2, low=0, high=10)


def _classes(of: Drawing, n: int) -> tuple[Given, ...]:
    return of.normal(n, 2 * n), of.ids(n, size=2 * n)


SAMPLES: tuple[Sample, ...] = (
    Sample("storage-copy", _one, lambda t, x: t.storage.copy(x)),
    Sample("storage-cast", _one, lambda t, x: t.storage.cast(t.elementwise.multiply(x, 100.0), "int32")),
    Sample("matmul", _square, lambda t, a, b: t.matmul.matmul(a, b, transpose_b=True)),
    Sample("elementwise-add", _pair, lambda t, a, b: t.elementwise.add(a, b)),
    Sample("elementwise-subtract-number", _one, lambda t, x: t.elementwise.subtract(1.5, x)),
    Sample("elementwise-exp", _one, lambda t, x: t.elementwise.exp(x)),
    Sample("elementwise-erf", _one, lambda t, x: t.elementwise.erf(x)),
    Sample("elementwise-less", _pair, lambda t, a, b: t.elementwise.less(a, b)),
    Sample("elementwise-where", _pair, lambda t, a, b: t.elementwise.where(t.elementwise.less(a, b), a, b)),
    Sample("reduction-sum", _one, lambda t, x: (t.reduction.sum(x, axis=1), t.reduction.sum(x, axis=0))),
    Sample("reduction-of-all", _one, lambda t, x: (t.reduction.mean(x, axis=(0, 1)), t.reduction.max(x, axis=(0, 1)))),
    Sample("reduction-argmax", _one, lambda t, x: t.reduction.argmax(x, axis=1)),
    Sample("layout-reshape", _one, lambda t, x: t.layout.reshape(x, (x.shape[0] * x.shape[1],)), aliases=True),
    Sample("layout-concatenate", _pair, lambda t, a, b: t.layout.concatenate([a, b], axis=1), aliases=True),
    Sample("layout-pad", _one, lambda t, x: t.layout.pad(x, ((1, 0), (0, 2)), value=3.0), aliases=True),
    Sample(
        "indexing-gather-rows",
        lambda of, n: (of.normal(n, 2 * n), of.ids(2 * n, size=n)),
        lambda t, x, ids: t.indexing.gather_rows(x, ids),
    ),
    Sample(
        "indexing-scatter-add-rows",
        lambda of, n: (of.normal(n, 2 * n), repeated(of.draw, n, n), of.normal(n, 2 * n)),
        lambda t, base, ids, rows: t.indexing.scatter_add_rows(base, ids, rows),
    ),
    Sample(
        "indexing-set-rows",
        lambda of, n: (of.normal(n, 2 * n), distinct(of.draw, n // 2, n), of.normal(n // 2, 2 * n)),
        lambda t, base, ids, rows: t.indexing.set_rows(base, ids, rows),
    ),
    Sample("activation-gelu", _one, lambda t, x: t.activation.gelu(x, form="tanh")),
    Sample("activation-gelu-vjp", _pair, lambda t, dy, x: t.activation.gelu_vjp(dy, x, form="erf")),
    Sample("activation-gated-silu-vjp", _pair, lambda t, x, up: t.activation.gated_silu_vjp(x, x, up)),
    Sample("softmax", _one, lambda t, x: t.softmax.softmax(x)),
    Sample("softmax-vjp", _pair, lambda t, dy, y: t.softmax.softmax_vjp(dy, y)),
    Sample("softmax-log", _one, lambda t, x: t.softmax.log_softmax(x)),
    Sample("normalization-layer", _norm, lambda t, x, w, b: t.normalization.layer_norm(x, w, b, eps=1e-5)),
    Sample("normalization-rms", _norm, lambda t, x, w, b: t.normalization.rms_norm(x, w, eps=1e-5)),
    Sample("linear", _layer, lambda t, x, w, b: t.linear.linear(x, w, b)),
    Sample("linear-vjp-input", _square, lambda t, dy, w: t.linear.linear_vjp_input(dy, w)),
    Sample("linear-vjp-weight", _pair, lambda t, dy, x: t.linear.linear_vjp_weight(dy, x)),
    Sample("loss", _classes, lambda t, x, ids: t.loss.cross_entropy_grad(x, ids, None, ignore=-1)),
    Sample("rope", _turns, lambda t, x, cos, sin: t.rope.rope(x, cos, sin, interleaved=False)),
    Sample("causal-attention", _heads, lambda t, q, k, v: t.causal_attention.attend(q, k, v, scale=0.4, offset=0)),
    Sample("flash-attention", _heads, lambda t, q, k, v: t.flash_attention.attend(q, k, v, scale=0.4, offset=0)),
    Sample(
        "paged-attention",
        _pages,
        lambda t, q, k, v, table, starts: t.paged_attention.attend(q, k, v, table, starts, page=4, scale=0.4),
    ),
    Sample(
        "quantized-linear",
        lambda of, n: (of.normal(n, 64), of.normal(n, 64)),
        lambda t, x, w: t.quantized_linear.linear(x, t.quantized_linear.pack(w, block=64, double=False), None),
    ),
)
