from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

X = np.array([[-30.0, -9, -5, -3, -1, -1e-3, 0], [1e-20, 1e-3, 0.5, 1, 3, 9, 30]], np.float32)
EXTREMES = np.array([-np.inf, -1e30, -1e4, 1e4, 1e30, np.inf], np.float32)


def gelu_erf(x: Any) -> Any:
    return x * np.vectorize(lambda z: math.erfc(-z / math.sqrt(2)) / 2, otypes=[float])(x)


def gelu_tanh(x: Any) -> Any:
    return x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))) / 2


def silu(x: Any) -> Any:
    return x / (1 + np.exp(-x))


FORMS = [("erf", gelu_erf), ("tanh", gelu_tanh)]


@pytest.mark.parametrize(("form", "oracle"), FORMS)
def test_gelu_and_its_gradient_follow_the_formula(bench: Any, differences: Any, form: Any, oracle: Any) -> None:
    slot, dy = bench.tools.activation, np.linspace(-1, 2, X.size, dtype=np.float32).reshape(X.shape)
    bench.close(slot.gelu(bench.put(X), form=form), oracle(X.astype(np.float64)), 2e-7)
    bench.close(slot.gelu_vjp(bench.put(dy), bench.put(X), form=form), differences(oracle, [X], dy)[0], 1e-6)


def test_silu_and_its_gradient_follow_the_formula(bench: Any, differences: Any) -> None:
    slot, dy = bench.tools.activation, np.linspace(-1, 2, X.size, dtype=np.float32).reshape(X.shape)
    bench.close(slot.silu(bench.put(X)), silu(X.astype(np.float64)), 2e-7)
    bench.close(slot.silu_vjp(bench.put(dy), bench.put(X)), differences(silu, [X], dy)[0], 1e-6)


def test_gated_silu_has_a_gradient_for_gate_and_up(bench: Any, differences: Any, normal: Any) -> None:
    slot, (gate, up, dy) = bench.tools.activation, (normal(2, 7), normal(2, 7), normal(2, 7))
    bench.close(slot.gated_silu(bench.put(gate), bench.put(up)), silu(gate.astype(np.float64)) * up)
    got = slot.gated_silu_vjp(bench.put(dy), bench.put(gate), bench.put(up))
    for gradient, want in zip(got, differences(lambda g, u: silu(g) * u, [gate, up], dy), strict=True):
        bench.close(gradient, want)


@pytest.mark.parametrize("x", [-12.0, -20.0, -60.0])
def test_silu_keeps_its_relative_accuracy_far_below_zero(eager_bench: Any, x: float) -> None:
    got = eager_bench.get(eager_bench.tools.activation.silu(eager_bench.put(np.full(3, x, np.float32))))
    assert got == pytest.approx(x * math.exp(x) / (1 + math.exp(x)), rel=1e-5)


def test_no_form_gives_nan_at_the_far_ends(bench: Any) -> None:
    slot, x, one = bench.tools.activation, bench.put(EXTREMES), bench.put(np.ones(6, np.float32))
    for out in (slot.gelu(x, form="erf"), slot.gelu(x, form="tanh"), slot.silu(x)):
        assert bench.get(out).tolist() == [0, 0, 0, *EXTREMES[3:]]
    for gradient in (slot.gelu_vjp(one, x, form="erf"), slot.gelu_vjp(one, x, form="tanh"), slot.silu_vjp(one, x)):
        assert bench.get(gradient).tolist() == [0, 0, 0, 1, 1, 1]
    gate, up = slot.gated_silu_vjp(one, x, one)
    assert bench.get(gate).tolist() == [0, 0, 0, 1, 1, 1] and bench.get(up).tolist() == [0, 0, 0, *EXTREMES[3:]]


def test_nan_stays_nan(eager_bench: Any) -> None:
    slot, x, one = (
        eager_bench.tools.activation,
        eager_bench.put(np.full(2, np.nan, np.float32)),
        eager_bench.put(np.ones(2, np.float32)),
    )
    outs = [slot.gelu(x, form="erf"), slot.gelu(x, form="tanh"), slot.silu(x), slot.gated_silu(x, one)]
    outs += [slot.gelu_vjp(one, x, form="erf"), slot.gelu_vjp(one, x, form="tanh"), slot.silu_vjp(one, x)]
    assert all(np.isnan(eager_bench.get(out)).all() for out in outs)


def test_halves_are_computed_in_float32_and_rounded_once(bench: Any, rounded: Any) -> None:
    slot, hosts = bench.tools.activation, np.linspace(-8, 8, 33, dtype=np.float32)
    for dtype in bench.halves:
        x = bench.put(hosts, dtype)
        truth = bench.get(x).astype(np.float64)
        for got, want in (
            (slot.gelu(x, form="erf"), gelu_erf(truth)),
            (slot.gelu(x, form="tanh"), gelu_tanh(truth)),
            (slot.silu(x), silu(truth)),
            (slot.gated_silu(x, x), silu(truth) * truth),
        ):
            value, unit = rounded(dtype, want)
            assert bench.tools.storage.dtype_of(got) == dtype
            assert (np.abs(bench.get(got) - value) <= unit).all()
        assert {bench.tools.storage.dtype_of(g) for g in slot.gated_silu_vjp(x, x, x)} == {dtype}


@pytest.mark.parametrize("shape", [(0, 5), (1,), ()])
def test_any_shape_passes(eager_bench: Any, shape: tuple[int, ...]) -> None:
    slot, x = eager_bench.tools.activation, eager_bench.put(np.ones(shape, np.float32))
    for out in (
        slot.gelu(x, form="erf"),
        slot.gelu_vjp(x, x, form="tanh"),
        slot.silu(x),
        slot.gated_silu_vjp(x, x, x)[1],
    ):
        assert eager_bench.get(out).shape == shape
