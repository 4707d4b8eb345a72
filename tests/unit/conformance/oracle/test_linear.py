from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from turret.conformance.oracle import linear as oracle

LEADING: list[tuple[int, ...]] = [(), (3,), (2, 3)]


def test_a_row_worked_by_hand() -> None:
    weight = np.array([[1.0, 2.0], [0.0, -1.0], [3.0, 0.0]])
    x, bias = np.array([[5.0, 7.0]]), np.array([100.0, 200.0, 300.0])
    assert oracle.linear(x, weight, bias).tolist() == [[119, 193, 315]]
    assert oracle.linear(x, weight, None).tolist() == [[19, -7, 15]]


@pytest.mark.parametrize("leading", [*LEADING, (0,)])
def test_leading_axes_are_kept(normal: Any, leading: tuple[int, ...]) -> None:
    x, weight, bias = normal(*leading, 4), normal(2, 4), normal(2)
    want = np.einsum("...i,oi->...o", x, weight) + bias
    assert oracle.linear(x, weight, bias) == pytest.approx(want, rel=1e-12)
    assert oracle.linear_vjp_input(want, weight).shape == x.shape
    assert [each.shape for each in oracle.linear_vjp_weight(want, x)] == [(2, 4), (2,)]


@pytest.mark.parametrize("leading", LEADING)
def test_gradients_follow_differences(normal: Any, follows_differences: Any, leading: tuple[int, ...]) -> None:
    x, weight, bias, dy = normal(*leading, 4), normal(2, 4), normal(2), normal(*leading, 2)
    gradients = [oracle.linear_vjp_input(dy, weight), *oracle.linear_vjp_weight(dy, x)]
    follows_differences(oracle.linear, [x, weight, bias], dy, gradients)
