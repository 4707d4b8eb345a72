from __future__ import annotations

import math
from typing import Any, Literal

import numpy as np
import pytest
import scipy.special

from turret.conformance.oracle import activation as oracle

FORMS: tuple[Literal["erf", "tanh"], ...] = ("erf", "tanh")


def test_gelu_is_x_times_the_normal_distribution() -> None:
    x = np.linspace(-6, 6, 501)
    assert oracle.gelu(x, form="erf") == pytest.approx(x * scipy.special.ndtr(x), rel=1e-12, abs=1e-15)


def test_the_tanh_form_is_near_gelu_but_another_function() -> None:
    x = np.linspace(-6, 6, 501)
    distance = np.abs(oracle.gelu(x, form="tanh") - oracle.gelu(x, form="erf")).max()
    assert 1e-4 < distance < 1e-3
    one = 0.5 * (1 + math.tanh(math.sqrt(2 / math.pi) * 1.044715))
    assert oracle.gelu(np.array([1.0]), form="tanh")[0] == pytest.approx(one, rel=1e-15)


def test_silu_is_x_times_the_logistic_function() -> None:
    x = np.concatenate([np.linspace(-40, 40, 501), [-700.0, 700.0]])
    assert oracle.silu(x) == pytest.approx(x * scipy.special.expit(x), rel=1e-14)


def test_the_gate_is_the_first_operand() -> None:
    gate, up = np.array([-2.0, 3.0]), np.array([5.0, -7.0])
    want = [-10 / (1 + math.exp(2)), -21 / (1 + math.exp(-3))]
    assert oracle.gated_silu(gate, up) == pytest.approx(want, rel=1e-15)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("shape", [(), (7,), (2, 3)])
def test_gradients_of_gelu_follow_differences(
    normal: Any, follows_differences: Any, form: Literal["erf", "tanh"], shape: tuple[int, ...]
) -> None:
    x, dy = 2 * normal(*shape), normal(*shape)
    follows_differences(lambda x: oracle.gelu(x, form=form), [x], dy, [oracle.gelu_vjp(dy, x, form=form)])


@pytest.mark.parametrize("shape", [(), (7,), (2, 3)])
def test_gradients_of_silu_follow_differences(normal: Any, follows_differences: Any, shape: tuple[int, ...]) -> None:
    x, up, dy = 3 * normal(*shape), normal(*shape), normal(*shape)
    follows_differences(oracle.silu, [x], dy, [oracle.silu_vjp(dy, x)])
    follows_differences(oracle.gated_silu, [x, up], dy, oracle.gated_silu_vjp(dy, x, up))


@pytest.mark.parametrize("form", FORMS)
def test_large_values_reach_their_limits(form: Literal["erf", "tanh"]) -> None:
    x, ones = np.array([1e30, 50.0, -50.0, -1e30]), np.ones(4)
    assert oracle.gelu(x, form=form).tolist() == [1e30, 50, 0, 0]
    assert oracle.gelu_vjp(ones, x, form=form).tolist() == [1, 1, 0, 0]
    assert oracle.silu(x) == pytest.approx([1e30, 50, 0, 0], abs=1e-19)
    assert oracle.silu_vjp(ones, x) == pytest.approx([1, 1, 0, 0], abs=1e-19)


def test_nan_and_infinity_propagate_without_a_warning() -> None:
    x = np.array([math.nan, math.inf])
    for got in (oracle.gelu(x, form="erf"), oracle.gelu(x, form="tanh"), oracle.silu(x)):
        assert math.isnan(got[0]) and got[1] == math.inf
