"""The methods of every slot that takes arrays, at sizes small enough to run often: what rules for all are tried on."""

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


def _arithmetic(t: Tools, a: Any, b: Any) -> Any:
    ops = t.elementwise
    return (
        *(op(a, b) for op in (ops.add, ops.subtract, ops.multiply, ops.divide, ops.maximum, ops.minimum)),
        ops.subtract(1.5, a),
        ops.negative(b),
    )


def _functions(t: Tools, x: Any) -> Any:
    ops = t.elementwise
    positive = ops.exp(x)
    return positive, ops.log(positive), ops.sqrt(positive), ops.rsqrt(positive), ops.tanh(x), ops.erf(x)


def _choices(t: Tools, a: Any, b: Any) -> Any:
    ops = t.elementwise
    less, finite = ops.less(a, b), ops.isfinite(a)
    both = ops.logical_and(less, finite)
    return less, finite, both, ops.equal(a, b), ops.less_equal(b, a), ops.where(both, a, b)


def _folds(t: Tools, x: Any) -> Any:
    fold = t.reduction
    by_axis = [f(x, axis=axis) for f in (fold.sum, fold.mean, fold.max, fold.argmax) for axis in (0, 1)]
    return (*by_axis, *(f(x, axis=(0, 1)) for f in (fold.sum, fold.mean, fold.max)))


def _activations(t: Tools, x: Any, y: Any) -> Any:
    ops = t.activation
    return ops.gelu(x, form="erf"), ops.gelu(y, form="tanh"), ops.silu(x), ops.gated_silu(x, y)


def _activation_vjps(t: Tools, x: Any, y: Any) -> Any:
    ops = t.activation
    gelus = [ops.gelu_vjp(x, y, form=form) for form in ("erf", "tanh")]
    return (*gelus, ops.silu_vjp(x, y), ops.gated_silu_vjp(x, y, x))


def _softmaxes(t: Tools, x: Any, dy: Any) -> Any:
    y, z = t.softmax.softmax(x), t.softmax.log_softmax(x)
    return y, z, t.softmax.softmax_vjp(dy, y), t.softmax.log_softmax_vjp(dy, z)


def _norms(t: Tools, x: Any, w: Any, b: Any) -> Any:
    slot = t.normalization
    layer, rms = slot.layer_norm(x, w, b, eps=1e-5), slot.rms_norm(x, w, eps=1e-5)
    return layer, rms, slot.layer_norm_vjp(x, x, w, layer.mean, layer.rstd), slot.rms_norm_vjp(x, x, w, rms[1])


def _linears(t: Tools, x: Any, w: Any, b: Any) -> Any:
    y = t.linear.linear(x, w, b)
    return y, t.linear.linear(x, w, None), t.linear.linear_vjp_input(y, w), t.linear.linear_vjp_weight(y, x)


def _losses(t: Tools, x: Any, ids: Any) -> Any:
    return t.loss.cross_entropy(x, ids, None, ignore=-1), t.loss.cross_entropy_grad(x, ids, None, ignore=-1)


def _ropes(t: Tools, x: Any, cos: Any, sin: Any) -> Any:
    return t.rope.rope(x, cos, sin, interleaved=False), t.rope.rope_vjp(x, cos, sin, interleaved=True)


def _attention(t: Tools, q: Any, k: Any, v: Any) -> Any:
    out, probabilities = t.causal_attention.attend(q, k, v, scale=0.4, offset=0)
    return out, probabilities, t.causal_attention.attend_vjp(out, q, k, v, probabilities, scale=0.4)


def _flash(t: Tools, q: Any, k: Any, v: Any) -> Any:
    saved = t.flash_attention.attend(q, k, v, scale=0.4, offset=0)
    return saved, t.flash_attention.attend_vjp(q, q, k, v, saved, scale=0.4, offset=0)


def _paged(t: Tools, q: Any, k: Any, v: Any, table: Any, starts: Any) -> Any:
    return t.paged_attention.attend(q, k, v, table, starts, page=4, scale=0.4)


def _quantized(t: Tools, x: Any, w: Any) -> Any:
    slot = t.quantized_linear
    packed = slot.pack(w, block=64, scales="float32")
    y = slot.linear(x, packed, None)
    return packed, slot.unpack(packed), y, slot.linear_vjp_input(y, packed)


SAMPLES: tuple[Sample, ...] = (
    Sample("storage", _one, lambda t, x: (t.storage.copy(x), t.storage.cast(x, "int32"), t.storage.cast(x, "bool"))),
    Sample("matmul", _square, lambda t, a, b: (t.matmul.matmul(a, b), t.matmul.matmul(b, a, transpose_b=True))),
    Sample("elementwise-arithmetic", _pair, _arithmetic),
    Sample("elementwise-functions", _one, _functions),
    Sample("elementwise-choices", _pair, _choices),
    Sample("reduction", _one, _folds),
    Sample("layout-reshape", _one, lambda t, x: t.layout.reshape(x, (x.shape[0] * x.shape[1],)), aliases=True),
    Sample("layout-concatenate", _pair, lambda t, a, b: t.layout.concatenate([a, b], axis=1), aliases=True),
    Sample("layout-pad", _one, lambda t, x: t.layout.pad(x, ((1, 0), (0, 2)), value=3.0), aliases=True),
    Sample(
        "indexing-gather",
        lambda of, n: (of.normal(n, 2 * n), of.ids(2 * n, size=n), of.ids(n, size=2 * n)),
        lambda t, x, ids, places: (t.indexing.gather_rows(x, ids), t.indexing.gather_last(x, places)),
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
    Sample("activation", _pair, _activations),
    Sample("activation-vjps", _pair, _activation_vjps),
    Sample("softmax", _pair, _softmaxes),
    Sample("normalization", _norm, _norms),
    Sample("linear", _layer, _linears),
    Sample("loss", _classes, _losses),
    Sample("rope", _turns, _ropes),
    Sample("causal-attention", _heads, _attention),
    Sample("flash-attention", _heads, _flash),
    Sample("paged-attention", _pages, _paged),
    Sample("quantized-linear", lambda of, n: (of.normal(n, 64), of.normal(n, 64)), _quantized),
)
