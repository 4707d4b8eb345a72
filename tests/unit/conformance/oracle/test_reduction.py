from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from turret.conformance.oracle import reduction as oracle

X = np.array([[3.0, 1.0, 2.0], [-1.0, 5.0, 5.0]])


def test_folds_of_a_small_matrix() -> None:
    assert oracle.sum(X, axis=0).tolist() == [2, 6, 7] and oracle.sum(X, axis=-1).tolist() == [6, 9]
    assert oracle.mean(X, axis=1).tolist() == [2, 3] and oracle.mean(X, axis=(0, 1)).tolist() == 2.5
    assert oracle.max(X, axis=0).tolist() == [3, 5, 5] and oracle.max(X, axis=(0, -1)).tolist() == 5
    assert oracle.argmax(X, axis=1).tolist() == [0, 1] and oracle.argmax(X, axis=-2).tolist() == [0, 1, 1]


@pytest.mark.parametrize("axis", [0, -1, (0, 2), (1,), (-1, -2, -3), ()])
@pytest.mark.parametrize("keepdims", [False, True])
@pytest.mark.parametrize("name", ["sum", "mean", "max"])
def test_shapes_follow_axis_and_keepdims(normal: Any, name: str, axis: Any, keepdims: bool) -> None:
    x = normal(2, 3, 4)
    want = getattr(np, name)(x, axis=axis, keepdims=keepdims)
    got = getattr(oracle, name)(x, axis=axis, keepdims=keepdims)
    assert got.shape == want.shape and got == pytest.approx(want, rel=1e-14)


@pytest.mark.parametrize("name", ["sum", "mean", "max", "argmax"])
def test_a_result_of_rank_0_is_an_array(name: str) -> None:
    got = getattr(oracle, name)(np.array([1.0, 2.0]), axis=0)
    assert isinstance(got, np.ndarray) and got.shape == ()


def test_argmax_is_int32_and_keeps_the_axis_when_asked() -> None:
    got = oracle.argmax(X, axis=0, keepdims=True)
    assert got.dtype == np.int32 and got.tolist() == [[0, 1, 1]]


def test_empty_axes_give_zero_and_nan_and_no_maximum() -> None:
    x = np.ones((2, 0))
    assert oracle.sum(x, axis=1).tolist() == [0, 0] and np.isnan(oracle.mean(x, axis=1)).all()
    with pytest.raises(ValueError):
        oracle.max(x, axis=1)


def test_nan_wins_in_maximum_and_in_its_position() -> None:
    x = np.array([[1.0, math.nan, 9.0, math.nan], [math.inf, 1.0, 2.0, math.inf]])
    got = oracle.max(x, axis=1)
    assert math.isnan(got[0]) and got[1] == math.inf and oracle.argmax(x, axis=1).tolist() == [1, 0]


def test_opposite_infinities_sum_to_nan_without_a_warning() -> None:
    assert math.isnan(oracle.sum(np.array([math.inf, -math.inf]), axis=0))


def test_int32_sums_wrap() -> None:
    got = oracle.sum(np.array([2**31 - 1, 1], np.int32), axis=0)
    assert got.dtype == np.int32 and got == -(2**31)
