from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from turret.conformance.oracle import matmul as oracle

A = np.array([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]])
B = np.array([[1.0, 0.0], [2.0, -1.0], [0.0, 3.0]])
PRODUCT = [[5.0, 7.0], [14.0, 13.0]]


@pytest.mark.parametrize("transpose_a", [False, True])
@pytest.mark.parametrize("transpose_b", [False, True])
def test_the_product_of_two_small_matrices(transpose_a: bool, transpose_b: bool) -> None:
    a, b = A.T if transpose_a else A, B.T if transpose_b else B
    assert oracle.matmul(a, b, transpose_a=transpose_a, transpose_b=transpose_b).tolist() == PRODUCT


def test_leading_axes_go_side_by_side(normal: Any) -> None:
    a, b = normal(2, 3, 5, 4), normal(2, 3, 6, 5)
    got = oracle.matmul(a, b, transpose_a=True, transpose_b=True)
    assert got == pytest.approx(np.einsum("xyki,xyjk->xyij", a, b), rel=1e-12)


def test_an_empty_contraction_gives_zeros() -> None:
    assert oracle.matmul(np.ones((2, 0)), np.ones((0, 3))).tolist() == [[0, 0, 0], [0, 0, 0]]


def test_infinities_and_nan_propagate_without_a_warning() -> None:
    got = oracle.matmul(np.array([[np.inf, 1.0]]), np.array([[0.0, 1.0], [1.0, 1.0]]))
    assert np.isnan(got[0, 0]) and got[0, 1] == np.inf
