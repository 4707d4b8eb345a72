from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from turret.conformance.oracle import layout as oracle

X = np.arange(6).reshape(2, 3)


def test_reshape_keeps_row_major_order() -> None:
    assert oracle.reshape(X.T, (2, 3)).tolist() == [[0, 3, 1], [4, 2, 5]]


def test_axis_i_of_a_transpose_is_axis_axes_i_of_the_input() -> None:
    x = np.arange(24).reshape(2, 3, 4)
    got = oracle.transpose(x, (2, 0, 1))
    assert got.shape == (4, 2, 3) and all(got[k, i, j] == x[i, j, k] for i, j, k in np.ndindex(2, 3, 4))


def test_slices_have_bounds_and_steps_for_each_axis() -> None:
    assert oracle.slice(X, (0, 1), (2, 3)).tolist() == [[1, 2], [4, 5]]
    assert oracle.slice(X, (1, 0), (2, 3), step=(1, 2)).tolist() == [[3, 5]]
    assert oracle.slice(X, (1, 0), (1, 3)).shape == (0, 3)


def test_concatenation_goes_in_order() -> None:
    assert oracle.concatenate((X, X[:, :1]), axis=1).tolist() == [[0, 1, 2, 0], [3, 4, 5, 3]]


def test_padding_goes_before_and_after_each_axis() -> None:
    got = oracle.pad(X.astype(np.float64), ((0, 1), (2, 0)), value=-1.5)
    assert got.tolist() == [[-1.5, -1.5, 0, 1, 2], [-1.5, -1.5, 3, 4, 5], [-1.5] * 5]


def test_broadcasting_repeats_axes_of_size_1_and_new_ones() -> None:
    assert oracle.broadcast_to(np.array([[1], [2]]), (2, 2, 3)).tolist() == [[[1, 1, 1], [2, 2, 2]]] * 2


@pytest.mark.parametrize("dtype", ["float64", "int32", "bool", "uint8"])
def test_every_dtype_is_kept(dtype: str) -> None:
    x = X.astype(dtype)
    results: list[Any] = [
        oracle.reshape(x, (6,)),
        oracle.transpose(x, (1, 0)),
        oracle.slice(x, (0, 0), (1, 1)),
        oracle.concatenate([x, x], axis=0),
        oracle.pad(x, [(1, 1), (0, 0)]),
        oracle.broadcast_to(x, (2, 2, 3)),
    ]
    assert {each.dtype for each in results} == {np.dtype(dtype)}
