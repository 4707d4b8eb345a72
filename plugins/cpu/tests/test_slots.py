"""Every native slot and its gradients against float64 formulas and finite differences of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from scipy.special import erf, ndtr

from turret_cpu.backend import CpuBackend

X = npt.NDArray[Any]
Draw = np.random.Generator
Slopes = Callable[[Callable[..., X], Sequence[X], X], list[X]]
TIGHT = 2e-6


def wide(x: X) -> X:
    return x.astype(np.float64)


def made(draw: Draw, *shape: int) -> X:
    return draw.standard_normal(shape).astype(np.float32)


def close(got: X, want: X, tolerance: float = TIGHT) -> None:
    assert got.shape == want.shape
    scale = max(float(np.abs(want).max(initial=0.0)), 1e-30)
    assert float(np.abs(wide(got) - want).max(initial=0.0)) <= tolerance * scale


def phi(x: X) -> X:
    return np.asarray(np.exp(-x * x / 2) / np.sqrt(2 * np.pi))


@pytest.mark.parametrize("size", [1, 63, 65, 1000, 40_000])
@pytest.mark.parametrize("form", ["erf", "tanh"])
def test_gelu_and_its_gradient_follow_the_formula(backend: CpuBackend, draw: Draw, size: int, form: Any) -> None:
    slot = backend.capabilities().activation
    assert slot is not None
    x, dy = 3 * made(draw, size), made(draw, size)
    y = wide(x)
    if form == "erf":
        want, slope = y * ndtr(y), ndtr(y) + y * phi(y)
    else:
        c, u = np.sqrt(2 / np.pi), np.sqrt(2 / np.pi) * (y + 0.044715 * y**3)
        t = np.tanh(u)
        want, slope = 0.5 * y * (1 + t), 0.5 * (1 + t) + 0.5 * y * (1 - t * t) * c * (1 + 3 * 0.044715 * y * y)
    close(slot.gelu(x, form=form), want)
    close(slot.gelu_vjp(dy, x, form=form), wide(dy) * slope)


def test_gelu_keeps_relative_accuracy_in_its_lower_tail(backend: CpuBackend) -> None:
    slot = backend.capabilities().activation
    assert slot is not None
    x = np.linspace(-6, -0.5, 500, dtype=np.float32)
    want = wide(x) * ndtr(wide(x))
    assert np.abs(slot.gelu(x, form="erf") / want - 1).max() < 4e-6


def test_silu_and_gated_silu_follow_the_formula(backend: CpuBackend, draw: Draw) -> None:
    slot = backend.capabilities().activation
    assert slot is not None
    gate, up, dy = 4 * made(draw, 7, 65), made(draw, 7, 65), made(draw, 7, 65)
    g = wide(gate)
    s = 1 / (1 + np.exp(-g))
    slope = s * (1 + g * (1 - s))
    close(slot.silu(gate), g * s)
    close(slot.silu_vjp(dy, gate), dy * slope)
    close(slot.gated_silu(gate, up), g * s * up)
    dgate, dup = slot.gated_silu_vjp(dy, gate, up)
    close(dgate, dy * wide(up) * slope)
    close(dup, dy * g * s)


@pytest.mark.parametrize("name", ["gelu", "silu"])
def test_activations_let_infinities_and_nan_through(backend: CpuBackend, name: str) -> None:
    slot = backend.capabilities().activation
    assert slot is not None
    x = np.array([np.inf, np.nan, 1e30, -1e30, -0.0], np.float32)
    y = slot.gelu(x, form="erf") if name == "gelu" else slot.silu(x)
    assert np.isposinf(y[0])
    assert np.isnan(y[1])
    assert y[2] == np.float32(1e30)
    assert y[3] == 0
    assert y[4] == 0
    d = slot.gelu_vjp(np.ones_like(x), x, form="erf") if name == "gelu" else slot.silu_vjp(np.ones_like(x), x)
    assert list(d[[0, 2, 3]]) == [1, 1, 0]
    assert np.isnan(d[1])


@pytest.mark.parametrize("shape", [(1, 1), (3, 63), (65, 1000), (2, 3, 17)])
def test_softmax_and_logarithm_follow_the_formula(backend: CpuBackend, draw: Draw, shape: tuple[int, ...]) -> None:
    slot = backend.capabilities().softmax
    assert slot is not None
    x, dy = 5 * made(draw, *shape), made(draw, *shape)
    e = np.exp(wide(x) - wide(x).max(-1, keepdims=True))
    p = e / e.sum(-1, keepdims=True)
    close(slot.softmax(x), p)
    close(slot.log_softmax(x), np.log(p))
    g = wide(dy)
    close(slot.softmax_vjp(dy, p.astype(np.float32)), p * (g - (g * p).sum(-1, keepdims=True)), 1e-5)
    close(slot.log_softmax_vjp(dy, np.log(p).astype(np.float32)), g - p * g.sum(-1, keepdims=True), 1e-5)


def test_softmax_takes_huge_and_infinite_entries(backend: CpuBackend) -> None:
    slot = backend.capabilities().softmax
    assert slot is not None
    y = slot.softmax(np.array([[1e30, 0, -np.inf], [0, -1e30, -0.0]], np.float32))
    assert y.tolist() == [[1, 0, 0], [0.5, 0, 0.5]]
    assert np.isnan(slot.softmax(np.array([[np.nan, 1.0]], np.float32))).all()


def layer_norm(x: X, weight: X, bias: X) -> X:
    mean, var = x.mean(-1, keepdims=True), x.var(-1, keepdims=True)
    return np.asarray((x - mean) / np.sqrt(var + 1e-5) * weight + bias)


def rms_norm(x: X, weight: X) -> X:
    return np.asarray(x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-5) * weight)


@pytest.mark.parametrize("shape", [(1, 1), (2, 3, 63), (300, 128)])
def test_norms_follow_the_formula(backend: CpuBackend, draw: Draw, shape: tuple[int, ...]) -> None:
    slot = backend.capabilities().normalization
    assert slot is not None
    x, weight, bias = made(draw, *shape), made(draw, shape[-1]), made(draw, shape[-1])
    close(slot.layer_norm(x, weight, bias, eps=1e-5).out, layer_norm(wide(x), wide(weight), wide(bias)))
    close(slot.rms_norm(x, weight, eps=1e-5)[0], rms_norm(wide(x), wide(weight)))


def test_gradients_of_norms_agree_with_finite_differences(backend: CpuBackend, draw: Draw, slopes: Slopes) -> None:
    slot = backend.capabilities().normalization
    assert slot is not None
    x, weight, bias, dy = made(draw, 5, 9), made(draw, 9), made(draw, 9), made(draw, 5, 9)
    kept = slot.layer_norm(x, weight, bias, eps=1e-5)
    got = slot.layer_norm_vjp(dy, x, weight, kept.mean, kept.rstd)
    for g, want in zip(got, slopes(layer_norm, [wide(x), wide(weight), wide(bias)], wide(dy)), strict=True):
        close(g, want, 1e-5)
    _, rstd = slot.rms_norm(x, weight, eps=1e-5)
    for g, want in zip(
        slot.rms_norm_vjp(dy, x, weight, rstd), slopes(rms_norm, [wide(x), wide(weight)], wide(dy)), strict=True
    ):
        close(g, want, 1e-5)


@pytest.mark.parametrize(
    ("rows", "ins", "outs"), [(1, 1, 1), (4, 65, 63), (63, 1000, 17), (130, 64, 257), (1000, 31, 65)]
)
@pytest.mark.parametrize("biased", [True, False])
def test_linear_and_its_gradients_follow_the_formula(
    backend: CpuBackend, draw: Draw, rows: int, ins: int, outs: int, biased: bool
) -> None:
    slot = backend.capabilities().linear
    assert slot is not None
    x, weight, dy = made(draw, rows, ins), made(draw, outs, ins), made(draw, rows, outs)
    bias = made(draw, outs) if biased else None
    close(slot.linear(x, weight, bias), wide(x) @ wide(weight).T + (0 if bias is None else wide(bias)))
    close(slot.linear_vjp_input(dy, weight), wide(dy) @ wide(weight))
    dweight, dbias = slot.linear_vjp_weight(dy, x)
    close(dweight, wide(dy).T @ wide(x))
    close(dbias, wide(dy).sum(0))


def test_a_row_has_the_same_bits_among_many_rows_as_among_few(backend: CpuBackend, draw: Draw) -> None:
    slot = backend.capabilities().linear
    assert slot is not None
    x, weight = made(draw, 200, 300), made(draw, 70, 300)
    whole = slot.linear(x, weight, None)
    for start, stop in ((0, 5), (3, 14), (190, 200)):
        assert np.array_equal(slot.linear(x[start:stop], weight, None), whole[start:stop])


def nll(logits: X, targets: X, weights: X) -> X:
    top = logits.max(-1, keepdims=True)
    logp = logits - top - np.log(np.exp(logits - top).sum(-1, keepdims=True))
    return np.asarray(-(weights * logp[np.arange(len(targets)), targets]).sum() / weights.sum())


@pytest.mark.parametrize("weighted", [True, False])
def test_cross_entropy_and_its_gradient_follow_the_formula(
    backend: CpuBackend, draw: Draw, slopes: Slopes, weighted: bool
) -> None:
    slot = backend.capabilities().loss
    assert slot is not None
    logits, targets = 3 * made(draw, 6, 11), draw.integers(0, 11, 6).astype(np.int32)
    targets[2] = -7
    weights = draw.random(6).astype(np.float32) if weighted else None
    full = np.where(targets == -7, 0.0, 1.0 if weights is None else weights)
    safe = np.where(targets == -7, 0, targets)
    loss, gradient = slot.cross_entropy_grad(logits, targets, weights, ignore=-7)
    assert loss.shape == ()
    close(loss, nll(wide(logits), safe, full))
    close(slot.cross_entropy(logits, targets, weights, ignore=-7), nll(wide(logits), safe, full))
    (want,) = slopes(lambda x: nll(x, safe, full), [wide(logits)], np.ones(()))
    close(gradient, want, 1e-5)


def test_cross_entropy_of_nothing_is_zero(backend: CpuBackend, draw: Draw) -> None:
    slot = backend.capabilities().loss
    assert slot is not None
    loss, gradient = slot.cross_entropy_grad(made(draw, 3, 5), np.full(3, 9, np.int32), None, ignore=9)
    assert loss == 0
    assert not gradient.any()


@pytest.mark.parametrize("interleaved", [True, False])
@pytest.mark.parametrize("per_row", [True, False])
def test_rope_turns_pairs_and_its_gradient_turns_them_back(
    backend: CpuBackend, draw: Draw, interleaved: bool, per_row: bool
) -> None:
    slot = backend.capabilities().rope
    assert slot is not None
    x, angle = made(draw, 2, 5, 3, 6), draw.random((2, 5, 3) if per_row else (5, 3))
    cos, sin = np.cos(angle).astype(np.float32), np.sin(angle).astype(np.float32)
    turn = np.exp(1j * (angle if per_row else angle[None]))[:, :, None, :]
    y = wide(x)
    pairs = y[..., 0::2] + 1j * y[..., 1::2] if interleaved else y[..., :3] + 1j * y[..., 3:]
    turned, want = pairs * turn, np.empty_like(y)
    if interleaved:
        want[..., 0::2], want[..., 1::2] = turned.real, turned.imag
    else:
        want[..., :3], want[..., 3:] = turned.real, turned.imag
    got = slot.rope(x, cos, sin, interleaved=interleaved)
    close(got, want)
    close(slot.rope_vjp(got, cos, sin, interleaved=interleaved), y)


@pytest.mark.parametrize("ta", [True, False])
@pytest.mark.parametrize("tb", [True, False])
@pytest.mark.parametrize("sizes", [(1, 1, 1, 1), (3, 65, 63, 300), (5, 13, 40, 8), (1, 700, 100, 129)])
def test_matmul_takes_both_operands_turned(
    backend: CpuBackend, draw: Draw, ta: bool, tb: bool, sizes: tuple[int, ...]
) -> None:
    z, m, n, k = sizes
    a, b = made(draw, z, *((k, m) if ta else (m, k))), made(draw, z, *((n, k) if tb else (k, n)))
    want = (wide(a).swapaxes(1, 2) if ta else wide(a)) @ (wide(b).swapaxes(1, 2) if tb else wide(b))
    matmul = backend.capabilities().required.matmul
    close(matmul.matmul(a, b, transpose_a=ta, transpose_b=tb), want)
    half = matmul.matmul(a.astype(np.float16), b.astype(np.float16), transpose_a=ta, transpose_b=tb)
    assert half.dtype == np.float16
    close(half, want, 5e-3)


def test_an_empty_contraction_gives_zeros(backend: CpuBackend) -> None:
    empty = np.empty((2, 3, 0), np.float32)
    got = backend.capabilities().required.matmul.matmul(empty, empty, transpose_b=True)
    assert got.shape == (2, 3, 3)
    assert not got.any()


def test_erf_agrees_with_scipy_in_every_float(backend: CpuBackend, draw: Draw) -> None:
    e = backend.capabilities().required.elementwise
    x = 2 * made(draw, 33, 5)
    close(e.erf(x), erf(wide(x)), 1e-7)
    close(e.erf(wide(x)), erf(wide(x)), 1e-15)
    assert e.erf(x.astype(np.float16)).dtype == np.float16


def test_rows_with_equal_indices_add_up(backend: CpuBackend, draw: Draw) -> None:
    indexing = backend.capabilities().required.indexing
    base, ids, rows = made(draw, 9, 4, 5), draw.integers(0, 9, 200).astype(np.int32), made(draw, 200, 4, 5)
    want = wide(base)
    np.add.at(want, ids, wide(rows))
    close(indexing.scatter_add_rows(base, ids, rows), want)


def test_sums_over_leading_axes_keep_float32_accurate(backend: CpuBackend, draw: Draw) -> None:
    x = draw.random((50_000, 3)).astype(np.float32)
    reduction = backend.capabilities().required.reduction
    close(reduction.sum(x, axis=0), wide(x).sum(0), 1e-6)
    assert reduction.sum(x.reshape(100, 500, 3), axis=(1, 0), keepdims=True).shape == (1, 1, 3)
