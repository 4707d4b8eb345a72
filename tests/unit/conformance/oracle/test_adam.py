"""Adam against numbers worked out by hand and a scalar loop from the papers."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from turret.conformance.oracle import adam
from turret.conformance.tracked import Tracked

BETAS, EPS, LR = (0.9, 0.99), 1e-8, 0.1


def update(params: Any, grads: Any, first: Any, second: Any, *, step: int = 1, **options: Any) -> Any:
    settings: dict[str, Any] = {"decay": [0.0] * len(params), "max_norm": math.inf} | options
    return adam.update(
        params,
        grads,
        first,
        second,
        lr=LR,
        correction1=1 - BETAS[0] ** step,
        correction2=1 - BETAS[1] ** step,
        betas=BETAS,
        eps=EPS,
        **settings,
    )


def zeros(params: Any) -> Any:
    return [np.zeros(p.shape) for p in params]


def some(seed: int = 0) -> Any:
    rng = np.random.default_rng(seed)
    return [rng.normal(size=shape) for shape in ((3, 2), (5,), ())]


def test_the_first_step_by_hand() -> None:
    params, grads = [np.array([1.0, 2.0])], [np.array([0.5, -4.0])]
    made = update(params, grads, zeros(params), zeros(params), decay=[0.2])
    # corrected moments are g and g^2: the step is the sign of g, and the decay 0.2 of the old value
    np.testing.assert_allclose(made[0][0], [1 - 0.1 * (1 + 0.2), 2 - 0.1 * (-1 + 0.4)], rtol=1e-7)
    np.testing.assert_allclose(made[1][0], [0.05, -0.4])
    np.testing.assert_allclose(made[2][0], [0.0025, 0.16])
    assert made[3] == pytest.approx(math.sqrt(16.25)) and made[4] is True


def test_gradients_beyond_the_norm_are_shortened_together() -> None:
    params, grads = [np.zeros(1), np.zeros(1)], [np.array([3.0]), np.array([-4.0])]
    _, first, second, norm, finite = update(params, grads, zeros(params), zeros(params), max_norm=1.0)
    assert norm == 5 and finite
    np.testing.assert_allclose([x[0] for x in first], [0.1 * 0.6, -0.1 * 0.8])
    np.testing.assert_allclose([x[0] for x in second], [0.01 * 0.36, 0.01 * 0.64])
    for limit in (5.0, 6.0, math.inf):
        within = update(params, grads, zeros(params), zeros(params), max_norm=limit)
        np.testing.assert_allclose([x[0] for x in within[1]], [0.3, -0.4])


def test_many_steps_follow_a_scalar_loop() -> None:
    params, first, second = some(), zeros(some()), zeros(some())
    decay = [0.1, 0.0, 0.3]
    p, m, v = float(params[2]), 0.0, 0.0
    for step in range(1, 30):
        grads = some(step)
        params, first, second, norm, finite = update(params, grads, first, second, step=step, decay=decay, max_norm=2.0)
        g = float(grads[2]) * min(1.0, 2.0 / norm)
        m, v = 0.9 * m + 0.1 * g, 0.99 * v + 0.01 * g * g
        p -= LR * (m / (1 - 0.9**step) / (math.sqrt(v / (1 - 0.99**step)) + EPS) + 0.3 * p)
        assert finite and norm == pytest.approx(math.sqrt(sum((x**2).sum() for x in grads)))
        assert float(params[2]) == pytest.approx(p, rel=1e-12)


def test_zero_gradients_are_a_step_of_decay_alone() -> None:
    params = some()
    made = update(params, zeros(params), zeros(params), zeros(params), decay=[0.5, 0.0, 0.0], max_norm=1.0)
    np.testing.assert_allclose(made[0][0], params[0] * (1 - LR * 0.5))
    np.testing.assert_array_equal(made[0][1], params[1])
    assert made[3] == 0 and made[4]


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("max_norm", [1.0, math.inf])
@pytest.mark.parametrize("at", [0, 1, 2])
def test_one_bad_gradient_returns_the_very_arrays_given(bad: float, max_norm: float, at: int) -> None:
    params, grads, first, second = some(0), some(1), some(2), [np.abs(x) for x in some(3)]
    grads[at] = np.full(grads[at].shape, bad)
    made = update(params, grads, first, second, max_norm=max_norm, donate=True)
    assert not made[4]
    assert np.isnan(made[3]) if math.isnan(bad) else made[3] == math.inf
    for got, olds in zip(made[:3], (params, first, second), strict=True):
        assert all(a is b for a, b in zip(got, olds, strict=True))


def test_a_moment_that_the_dtype_cannot_hold_refuses_the_step() -> None:
    params, grads = [np.ones(2)], [np.full(2, 1e30)]
    assert update(params, grads, zeros(params), zeros(params))[4]
    largest = float(np.finfo(np.float32).max)
    refused = update(params, grads, zeros(params), zeros(params), largest=largest)
    assert not refused[4] and refused[0][0] is params[0]
    assert update(params, grads, zeros(params), zeros(params), largest=largest, max_norm=1.0)[4]


@pytest.mark.parametrize("max_norm", [1.0, math.inf])
def test_tracked_arrays_give_the_same_values_and_a_small_finite_bound(max_norm: float) -> None:
    inputs = some(0), some(1), some(2), [np.abs(x) for x in some(3)]
    plain = update(*inputs, step=3, max_norm=max_norm, decay=[0.1, 0.0, 0.0])
    tracked = [[Tracked(x, 0.0, 2.0**-24) for x in arrays] for arrays in inputs]
    made = update(*tracked, step=3, max_norm=max_norm, decay=[0.1, 0.0, 0.0])
    assert made[4] and made[3].value == plain[3] and 0 < made[3].error < 1e-5
    for got, want in zip(made[:3], plain[:3], strict=True):
        for a, b in zip(got, want, strict=True):
            np.testing.assert_array_equal(a.value, b)
            assert 0 < a.error.max() < 1e-4
