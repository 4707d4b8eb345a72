from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from turret.conformance.oracle import normalization as oracle

EPS = 1e-5
SHAPES = [(5,), (3, 1), (2, 3, 4)]


def test_layer_norm_of_a_row_worked_by_hand() -> None:
    x, weight, bias = np.array([[1.0, 3.0, 5.0, 7.0]]), np.array([1.0, 2.0, 1.0, 1.0]), np.array([0.0, 0.0, 0.0, 9.0])
    out, mean, rstd = oracle.layer_norm(x, weight, bias, eps=4.0)
    assert mean.tolist() == [[4]] and rstd == pytest.approx(np.array([[1 / 3]]), rel=1e-15)  # variance 5
    assert out == pytest.approx(np.array([[-1, -2 / 3, 1 / 3, 10]]), rel=1e-15)


def test_rms_norm_of_a_row_worked_by_hand() -> None:
    out, rstd = oracle.rms_norm(np.array([[3.0, -4.0]]), np.array([2.0, 1.0]), eps=12.5)  # mean square 12.5
    assert rstd == pytest.approx(np.array([[0.2]]), rel=1e-15)
    assert out == pytest.approx(np.array([[1.2, -0.8]]), rel=1e-15)


@pytest.mark.parametrize("shape", [*SHAPES, (0, 4)])
def test_statistics_keep_the_last_axis_with_size_1(normal: Any, shape: tuple[int, ...]) -> None:
    x, weight, bias = normal(*shape), normal(shape[-1]), normal(shape[-1])
    out, mean, rstd = oracle.layer_norm(x, weight, bias, eps=EPS)
    assert out.shape == shape and mean.shape == rstd.shape == (*shape[:-1], 1)
    assert mean[..., 0] == pytest.approx(x.mean(axis=-1), rel=1e-12)
    assert rstd[..., 0] == pytest.approx(1 / np.sqrt(x.var(axis=-1) + EPS), rel=1e-12)
    assert oracle.rms_norm(x, weight, eps=EPS)[1].shape == (*shape[:-1], 1)


@pytest.mark.parametrize("shape", SHAPES)
def test_gradients_of_layer_norm_follow_differences(
    normal: Any, follows_differences: Any, shape: tuple[int, ...]
) -> None:
    x, weight, bias, dy = 2 * normal(*shape) + 1, normal(shape[-1]), normal(shape[-1]), normal(*shape)
    _, mean, rstd = oracle.layer_norm(x, weight, bias, eps=0.1)
    gradients = oracle.layer_norm_vjp(dy, x, weight, mean, rstd)
    follows_differences(lambda *inputs: oracle.layer_norm(*inputs, eps=0.1)[0], [x, weight, bias], dy, gradients)


@pytest.mark.parametrize("shape", SHAPES)
def test_gradients_of_rms_norm_follow_differences(
    normal: Any, follows_differences: Any, shape: tuple[int, ...]
) -> None:
    x, weight, dy = 2 * normal(*shape) + 1, normal(shape[-1]), normal(*shape)
    _, rstd = oracle.rms_norm(x, weight, eps=0.1)
    gradients = oracle.rms_norm_vjp(dy, x, weight, rstd)
    follows_differences(lambda *inputs: oracle.rms_norm(*inputs, eps=0.1)[0], [x, weight], dy, gradients)


def test_an_infinity_undoes_its_own_row_alone_without_a_warning() -> None:
    x = np.array([[math.inf, 1.0], [1.0, 2.0]])
    out, _, _ = oracle.layer_norm(x, np.ones(2), np.zeros(2), eps=EPS)
    assert np.isnan(out[0]).any() and np.isfinite(out[1]).all()
