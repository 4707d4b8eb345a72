from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import scipy.special

from turret.conformance.oracle import softmax as oracle


def test_a_row_of_logarithms_gives_their_shares() -> None:
    x = np.log(np.array([1.0, 2.0, 5.0]))
    assert oracle.softmax(x) == pytest.approx([0.125, 0.25, 0.625], rel=1e-14)
    assert oracle.log_softmax(x) == pytest.approx([math.log(0.125), math.log(0.25), math.log(0.625)], rel=1e-14)


@pytest.mark.parametrize("shape", [(65,), (3, 1), (2, 3, 4), (0, 4)])
def test_rows_agree_with_another_library(normal: Any, shape: tuple[int, ...]) -> None:
    x = 5 * normal(*shape)
    if not x.size:
        assert oracle.softmax(x).shape == oracle.log_softmax(x).shape == shape
        return
    assert oracle.softmax(x) == pytest.approx(scipy.special.softmax(x, axis=-1), rel=1e-13)
    assert oracle.log_softmax(x) == pytest.approx(scipy.special.log_softmax(x, axis=-1), rel=1e-13, abs=1e-14)


def test_large_values_do_not_overflow() -> None:
    x = np.array([[1e30, 0, -1e30], [1e30, -1e30, 1e30], [0, 0, -math.inf]])
    assert oracle.softmax(x).tolist() == [[1, 0, 0], [0.5, 0, 0.5], [0.5, 0.5, 0]]
    assert oracle.log_softmax(x)[0].tolist() == [0, -1e30, -2e30]


def test_an_undefined_row_does_not_warn_or_reach_its_neighbours() -> None:
    x = np.array([[math.nan, 0], [math.inf, 0], [-math.inf, -math.inf], [0, 0]])
    assert np.isfinite(oracle.softmax(x)[3]).all() and np.isfinite(oracle.log_softmax(x)[3]).all()


@pytest.mark.parametrize("shape", [(5,), (3, 1), (2, 2, 3)])
@pytest.mark.parametrize("name", ["softmax", "log_softmax"])
def test_gradients_from_the_output_follow_differences(
    normal: Any, follows_differences: Any, name: str, shape: tuple[int, ...]
) -> None:
    x, dy, forward = 2 * normal(*shape), normal(*shape), getattr(oracle, name)
    follows_differences(forward, [x], dy, [getattr(oracle, f"{name}_vjp")(dy, forward(x))])
