"""Every operation with an independent float64 formula, and gradients by central differences."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from turret.spi import NF4_LEVELS, Packed
from turret.tensor import Tensor, ops

Array = npt.NDArray[Any]
Spans = list[tuple[int, int]]
SPANS: Spans = [(0, 1), (1, 4), (4, 6)]
F64 = np.float64
RANDOM = np.random.default_rng(20260731)
erf = np.vectorize(math.erf, otypes=[F64])


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """op(*inputs, **options) must equal formula(*inputs); float64 inputs are differentiated, others are constants."""

    id: str
    op: Callable[..., Tensor]
    formula: Callable[..., Any]
    inputs: tuple[Array, ...]
    options: dict[str, Any] = field(default_factory=dict)
    differentiable: bool = True

    def __str__(self) -> str:
        return self.id


def floats(*shape: int, low: float = -2.0, high: float = 2.0) -> Array:
    return RANDOM.uniform(low, high, shape)


def ints(*shape: int, high: int) -> Array:
    return RANDOM.integers(0, high, shape).astype(np.int32)


def bools(*shape: int) -> Array:
    return RANDOM.random(shape) < 0.5


def case(id: str, op: Any, formula: Any, *inputs: Array, differentiable: bool = True, **options: Any) -> Case:
    return Case(id=id, op=op, formula=formula, inputs=inputs, options=options, differentiable=differentiable)


def joined(op: Callable[..., tuple[Tensor, ...]]) -> Callable[..., Tensor]:
    """The outputs of op(x, (weight, bias), ...) side by side."""
    return lambda x, *maps: ops.concatenate(op(x, *zip(maps[::2], maps[1::2], strict=True)), -1)


def affine(x: Array, *maps: Array) -> Array:
    return np.concatenate([x @ w.T + b for w, b in zip(maps[::2], maps[1::2], strict=True)], -1)


def packed_affine(x: Array, codes: Array, scales: Array, bias: Array) -> Array:
    values = np.array(NF4_LEVELS)[np.stack([codes >> 4, codes & 15], 1).reshape(-1)]
    return x @ (values * np.repeat(scales.astype(F64), 32)[: values.size]).reshape(bias.size, -1).T + bias


def softmax(x: Array) -> Array:
    p = np.exp(x - x.max(-1, keepdims=True))
    return p / p.sum(-1, keepdims=True)


def sigmoid(x: Array) -> Array:
    return 1 / (1 + np.exp(-x))


def gelu(x: Array) -> Array:
    return x * 0.5 * (1 + erf(x / math.sqrt(2)))


def gelu_tanh(x: Array) -> Array:
    return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def layer_norm(x: Array, w: Array, b: Array, eps: float = 1e-5) -> Array:
    return (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + eps) * w + b


def rms_norm(x: Array, w: Array, eps: float = 1e-5) -> Array:
    return x / np.sqrt((x**2).mean(-1, keepdims=True) + eps) * w


def attention(q: Array, k: Array, v: Array, *, scale: float, offset: int = 0) -> Array:
    """One query head and one position at a time, from the definition."""
    out = np.zeros_like(q)
    group = q.shape[2] // k.shape[2]
    for b, t, h in np.ndindex(*q.shape[:3]):
        seen = min(offset + t + 1, k.shape[1])
        weights = softmax(scale * k[b, :seen, h // group] @ q[b, t, h])
        out[b, t, h] = weights @ v[b, :seen, h // group]
    return out


def segmented(q: Array, k: Array, v: Array, *, spans: Spans, **options: float) -> Array:
    return np.concatenate([attention(q[:, a:b], k[:, a:b], v[:, a:b], **options) for a, b in spans], axis=1)


def rotate(x: Array, cos: Array, sin: Array, *, interleaved: bool = False) -> Array:
    out, half = np.zeros_like(x), x.shape[3] // 2
    for b, t, i in np.ndindex(x.shape[0], x.shape[1], half):
        first, second = (2 * i, 2 * i + 1) if interleaved else (i, i + half)
        c, s = (a.astype(F64)[(t, i) if a.ndim == 2 else (b, t, i)] for a in (cos, sin))
        out[b, t, :, first] = x[b, t, :, first] * c - x[b, t, :, second] * s
        out[b, t, :, second] = x[b, t, :, second] * c + x[b, t, :, first] * s
    return out


def cross_entropy(logits: Array, targets: Array, weights: Array | None = None, *, ignore: int = -1) -> Any:
    rows = logits.reshape(-1, logits.shape[-1])
    share = np.ones(targets.size) if weights is None else weights.astype(F64).reshape(-1)
    total = norm = 0.0
    for row, target, w in zip(rows, targets.reshape(-1), share, strict=True):
        if target != ignore:
            total += w * (math.log(np.exp(row - row.max()).sum()) + row.max() - row[target])
            norm += w
    return np.asarray(total / norm if norm else 0.0)


def some_ignored(*shape: int, high: int, ignore: int) -> Array:
    ids = ints(*shape, high=high)
    ids.reshape(-1)[::3] = ignore
    return ids


ANGLES = RANDOM.uniform(0, 6, (3, 2)), RANDOM.uniform(0, 6, (2, 3, 2))
TURNS = [(np.cos(a).astype(np.float32), np.sin(a).astype(np.float32)) for a in ANGLES]
Q, K = floats(2, 3, 4, 2), (floats(2, 5, 2, 2), floats(2, 5, 2, 2))

CASES = [
    case("add", ops.add, lambda a, b: a + b, floats(2, 3), floats(2, 3)),
    case("add-broadcast", ops.add, lambda a, b: a + b, floats(2, 1, 3), floats(4, 1)),
    case("add-number", lambda a: ops.add(a, 2.5), lambda a: a + 2.5, floats(2, 3)),
    case("number-add", lambda a: ops.add(2, a), lambda a: 2 + a, floats(2, 3)),
    case("subtract", ops.subtract, lambda a, b: a - b, floats(2, 3), floats(3)),
    case("number-subtract", lambda a: ops.subtract(1.5, a), lambda a: 1.5 - a, floats(2, 3)),
    case("subtract-number", lambda a: ops.subtract(a, 1.5), lambda a: a - 1.5, floats(2, 3)),
    case("multiply", ops.multiply, lambda a, b: a * b, floats(2, 3), floats(2, 1)),
    case("multiply-number", lambda a: ops.multiply(a, -3), lambda a: a * -3, floats(2, 3)),
    case("multiply-by-itself", lambda a: ops.multiply(a, a), lambda a: a * a, floats(3)),
    case("divide", ops.divide, lambda a, b: a / b, floats(2, 3), floats(2, 3, low=0.5)),
    case("divide-broadcast", ops.divide, lambda a, b: a / b, floats(3), floats(2, 1, low=0.5)),
    case("number-divide", lambda a: ops.divide(2.0, a), lambda a: 2 / a, floats(2, 3, low=0.5)),
    case("divide-number", lambda a: ops.divide(a, 4), lambda a: a / 4, floats(2, 3)),
    case("maximum", ops.maximum, np.maximum, floats(2, 3), floats(3)),
    case("maximum-number", lambda a: ops.maximum(a, 0.1), lambda a: np.maximum(a, 0.1), floats(7)),
    case("number-maximum", lambda a: ops.maximum(0.1, a), lambda a: np.maximum(a, 0.1), floats(7)),
    case("minimum", ops.minimum, np.minimum, floats(2, 1), floats(2, 3)),
    case("minimum-number", lambda a: ops.minimum(a, 0.1), lambda a: np.minimum(a, 0.1), floats(7)),
    case("negative", ops.negative, lambda x: -x, floats(2, 3)),
    case("exp", ops.exp, np.exp, floats(2, 3)),
    case("log", ops.log, np.log, floats(2, 3, low=0.2)),
    case("sqrt", ops.sqrt, np.sqrt, floats(2, 3, low=0.2)),
    case("rsqrt", ops.rsqrt, lambda x: 1 / np.sqrt(x), floats(2, 3, low=0.2)),
    case("tanh", ops.tanh, np.tanh, floats(2, 3)),
    case("erf", ops.erf, erf, floats(2, 3)),
    case("where", ops.where, np.where, bools(4, 5), floats(4, 5), floats(4, 5)),
    case("where-broadcast", ops.where, np.where, bools(4, 1, 5), floats(3, 1), floats(1)),
    case("where-number", lambda c, a: ops.where(c, a, 7.0), lambda c, a: np.where(c, a, 7.0), bools(4, 5), floats(5)),
    case("number-where", lambda c, a: ops.where(c, 7, a), lambda c, a: np.where(c, 7, a), bools(4, 5), floats(4, 1)),
    case("equal", ops.equal, np.equal, ints(3, 4, high=3), ints(4, high=3), differentiable=False),
    case("less", ops.less, np.less, ints(3, 4, high=3), ints(4, high=3), differentiable=False),
    case("less_equal", ops.less_equal, np.less_equal, ints(3, 4, high=3), ints(4, high=3), differentiable=False),
    case("logical_and", ops.logical_and, np.logical_and, bools(3, 4), bools(4), differentiable=False),
    case("isfinite", ops.isfinite, np.isfinite, np.array([1.0, np.nan, np.inf, -np.inf]), differentiable=False),
    case("argmax", ops.argmax, lambda x: x.argmax(-1), ints(4, 6, high=3), differentiable=False),
    case(
        "argmax-keep",
        ops.argmax,
        lambda x: x.argmax(0)[None],
        floats(4, 6),
        axis=0,
        keepdims=True,
        differentiable=False,
    ),
    case("sum", ops.sum, np.sum, floats(2, 3)),
    case("sum-axis", ops.sum, lambda x: x.sum((0, 2)), floats(2, 3, 4), axis=(0, -1)),
    case("sum-keep", ops.sum, lambda x: x.sum(1, keepdims=True), floats(2, 3, 4), axis=1, keepdims=True),
    case("mean", ops.mean, np.mean, floats(2, 3)),
    case("mean-axis", ops.mean, lambda x: x.mean((0, 1)), floats(2, 3, 4), axis=(1, 0)),
    case("mean-keep", ops.mean, lambda x: x.mean(-1, keepdims=True), floats(2, 3, 4), axis=-1, keepdims=True),
    case("max", ops.max, np.max, floats(2, 3)),
    case("max-axis", ops.max, lambda x: x.max((0, 2)), floats(2, 3, 4), axis=(0, 2)),
    case("max-keep", ops.max, lambda x: x.max(1, keepdims=True), floats(2, 3, 4), axis=1, keepdims=True),
    case("reshape", ops.reshape, lambda x: x.reshape(3, 4), floats(2, 6), shape=(3, -1)),
    case("transpose", ops.transpose, lambda x: x.transpose(2, 0, 1), floats(2, 3, 4), axes=(2, 0, -2)),
    case("transpose-all", ops.transpose, lambda x: x.T, floats(2, 3, 4)),
    case("slice", ops.slice, lambda x: x[1:5:2, 0:3], floats(6, 4), start=(1, 0), stop=(5, 3), step=(2, 1)),
    case("index", lambda x: ops.index(x, (..., -1)), lambda x: x[..., -1], floats(2, 3, 4)),
    case(
        "concatenate",
        lambda a, b: ops.concatenate([a, b, a], 1),
        lambda a, b: np.concatenate([a, b, a], 1),
        floats(2, 3),
        floats(2, 1),
    ),
    case(
        "pad",
        ops.pad,
        lambda x: np.pad(x, [(1, 0), (2, 3)], constant_values=9),
        floats(2, 3),
        widths=[(1, 0), (2, 3)],
        value=9.0,
    ),
    case("broadcast_to", ops.broadcast_to, lambda x: np.broadcast_to(x, (5, 2, 3)), floats(2, 1), shape=(5, 2, 3)),
    case("cast", lambda x: ops.cast(x, "float32").cast("float32"), lambda x: x, floats(2, 3)),
    case("gather_rows", ops.gather_rows, lambda t, i: t[i], floats(5, 3), ints(2, 4, high=5)),
    case(
        "gather_last",
        ops.gather_last,
        lambda x, i: np.take_along_axis(x, i[..., None], -1)[..., 0],
        floats(2, 3, 5),
        ints(2, 3, high=5),
    ),
    case("matmul", ops.matmul, np.matmul, floats(2, 3), floats(3, 4)),
    case("matmul-tn", ops.matmul, lambda a, b: a.T @ b, floats(3, 2), floats(3, 4), transpose_a=True),
    case("matmul-nt", ops.matmul, lambda a, b: a @ b.mT, floats(5, 2, 3), floats(5, 4, 3), transpose_b=True),
    case(
        "matmul-tt",
        ops.matmul,
        lambda a, b: a.mT @ b.mT,
        floats(5, 3, 2),
        floats(5, 4, 3),
        transpose_a=True,
        transpose_b=True,
    ),
    case("linear", ops.linear, lambda x, w, b: x @ w.T + b, floats(2, 3, 4), floats(5, 4), floats(5)),
    case("linear-no-bias", ops.linear, lambda x, w: x @ w.T, floats(4), floats(5, 4)),
    case("linears", joined(ops.linears), affine, floats(2, 3, 4), floats(5, 4), floats(5), floats(2, 4), floats(2)),
    case("linears-vector", joined(ops.linears), affine, floats(4), floats(5, 4), floats(5)),
    case(
        "linears-no-bias",
        lambda x, *w: ops.concatenate(ops.linears(x, *((m, None) for m in w)), -1),
        lambda x, *w: x @ np.concatenate(w).T,
        floats(3, 4),
        floats(1, 4),
        floats(3, 4),
        floats(2, 4),
    ),
    case(
        "linears-one-used",
        lambda x, *w: ops.linears(x, *((m, None) for m in w))[1],
        lambda x, a, b, c: x @ b.T,
        floats(3, 4),
        floats(1, 4),
        floats(3, 4),
        floats(2, 4),
    ),
    case(
        "quantized_linear",
        lambda x, codes, scales, bias: ops.quantized_linear(
            x, Packed(codes, scales, None, None, (5, 8), 32, "float32"), bias
        ),
        packed_affine,
        floats(2, 3, 8),
        RANDOM.integers(0, 256, 20).astype(np.uint8),
        np.array([1.5, 0.25], np.float32),
        floats(5),
    ),
    case("softmax", ops.softmax, softmax, floats(2, 3, 5)),
    case("log_softmax", ops.log_softmax, lambda x: np.log(softmax(x)), floats(2, 3, 5)),
    case("gelu", ops.gelu, gelu, floats(2, 9, low=-4, high=4)),
    case("gelu-tanh", ops.gelu, gelu_tanh, floats(2, 9, low=-4, high=4), form="tanh"),
    case("silu", ops.silu, lambda x: x * sigmoid(x), floats(2, 9, low=-4, high=4)),
    case("gated_silu", ops.gated_silu, lambda g, u: g * sigmoid(g) * u, floats(2, 9), floats(2, 9)),
    case("layer_norm", ops.layer_norm, layer_norm, floats(2, 3, 6), floats(6), floats(6)),
    case(
        "layer_norm-eps",
        ops.layer_norm,
        lambda *a: layer_norm(*a, eps=0.5),
        floats(2, 6),
        floats(6),
        floats(6),
        eps=0.5,
    ),
    case("rms_norm", ops.rms_norm, rms_norm, floats(2, 3, 6), floats(6)),
    case("cross_entropy", ops.cross_entropy, cross_entropy, floats(2, 3, 5), ints(2, 3, high=5)),
    case("cross_entropy-ignore", ops.cross_entropy, cross_entropy, floats(7, 5), some_ignored(7, high=5, ignore=-1)),
    case(
        "cross_entropy-ignore-class",
        ops.cross_entropy,
        lambda x, t: cross_entropy(x, t, ignore=2),
        floats(7, 5),
        some_ignored(7, high=5, ignore=2),
        ignore=2,
    ),
    case(
        "cross_entropy-weights",
        ops.cross_entropy,
        cross_entropy,
        floats(7, 5),
        some_ignored(7, high=5, ignore=-1),
        RANDOM.random(7).astype(np.float32),
    ),
    case(
        "causal_mask",
        ops.causal_mask,
        lambda x: np.arange(5) <= 1 + np.arange(3)[:, None],
        floats(2),
        queries=3,
        keys=5,
        offset=1,
        differentiable=False,
    ),
    *(
        made
        for op in (ops.causal_attention, ops.flash_attention)
        for made in (
            case(
                op.__name__,
                op,
                lambda *a: attention(*a, scale=0.7),
                *(floats(2, 3, 2, 4) for _ in range(3)),
                scale=0.7,
            ),
            case(
                f"{op.__name__}-grouped",
                op,
                lambda *a: attention(*a, scale=0.3, offset=2),
                Q,
                *K,
                scale=0.3,
                offset=2,
            ),
        )
    ),
    *(
        case(
            f"segmented_attention-{form}",
            ops.segmented_attention,
            lambda *a: segmented(*a, scale=0.7, spans=SPANS),
            floats(1, 6, 4, 4),
            floats(1, 6, 2, 4),
            floats(1, 6, 2, 4),
            scale=0.7,
            spans=SPANS,
            linear_memory=form == "flash",
        )
        for form in ("materialized", "flash")
    ),
    case("rope", ops.rope, rotate, floats(2, 3, 2, 4), *TURNS[0]),
    case("rope-batched", ops.rope, rotate, floats(2, 3, 2, 4), *TURNS[1]),
    case(
        "rope-interleaved",
        ops.rope,
        lambda *a: rotate(*a, interleaved=True),
        floats(2, 3, 2, 4),
        *TURNS[0],
        interleaved=True,
    ),
]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    choices: dict[str, Callable[[Case], bool]] = {
        "op_case": lambda c: True,
        "gradient_case": lambda c: c.differentiable,
        "smooth_case": lambda c: c.differentiable and c.id != "cast",  # which rounds to float32 on purpose
    }
    for name, wanted in choices.items():
        if name in metafunc.fixturenames:
            metafunc.parametrize(name, [c for c in CASES if wanted(c)], ids=str)


@pytest.fixture(scope="session")
def covered() -> frozenset[str]:
    """Names of operations that some case calls: ids start with them."""
    return frozenset(part for c in CASES for part in c.id.split("-"))


Differences = Callable[[Callable[..., Any], tuple[Array, ...], Array, int], Array]


@pytest.fixture(scope="session")
def differences() -> Differences:
    """Central differences of sum(cotangent * f(*inputs)) with respect to one input, in float64."""

    def gradient(f: Callable[..., Any], inputs: tuple[Array, ...], cotangent: Array, which: int) -> Array:
        step, out = 1e-5, np.zeros(inputs[which].shape)
        for place in np.ndindex(*out.shape):
            ends = []
            for sign in (1, -1):
                moved = inputs[which].copy()
                moved[place] += sign * step
                ends.append(float((np.asarray(f(*inputs[:which], moved, *inputs[which + 1 :]), F64) * cotangent).sum()))
            out[place] = (ends[0] - ends[1]) / (2 * step)
        return out

    return gradient
