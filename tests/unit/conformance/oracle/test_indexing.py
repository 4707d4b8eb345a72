from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from turret.conformance.oracle import indexing as oracle


def ids(*values: int) -> Any:
    return np.array(values, np.int32)


def test_gathered_rows_take_the_shape_of_the_indices() -> None:
    table = np.array([[0.0, 1.0], [10.0, 11.0], [20.0, 21.0]])
    got = oracle.gather_rows(table, np.array([[2, 0], [2, 1]], np.int32))
    assert got.tolist() == [[[20, 21], [0, 1]], [[20, 21], [10, 11]]]
    assert oracle.gather_rows(table[:, 0], np.array(1, np.int32)) == 10
    assert oracle.gather_rows(table, ids()).shape == (0, 2)


@pytest.mark.parametrize("shape", [(), (3,), (2, 3), (2, 0)])
def test_gather_last_takes_one_element_of_each_row(rng: Any, normal: Any, shape: tuple[int, ...]) -> None:
    x, at = normal(*shape, 5), rng.integers(0, 5, shape, dtype=np.int32)
    got = oracle.gather_last(x, np.asarray(at))
    assert got.shape == shape and all(got[i] == x[i][np.asarray(at)[i]] for i in np.ndindex(shape))


def test_added_rows_accumulate_and_leave_the_others_alone() -> None:
    base = np.array([[1.0, 2.0], [math.nan, 4.0], [5.0, 6.0]])
    got = oracle.scatter_add_rows(base, ids(2, 0, 2), np.array([[1.0, 1.0], [10.0, math.inf], [100.0, 100.0]]))
    np.testing.assert_array_equal(got, [[11, math.inf], [math.nan, 4], [106, 107]])


def test_added_integers_stay_int32_and_wrap() -> None:
    got = oracle.scatter_add_rows(np.array([[2**31 - 1]], np.int32), ids(0), np.array([[1]], np.int32))
    assert got.dtype == np.int32 and got.tolist() == [[-(2**31)]]


def test_set_rows_replace_and_the_last_of_equal_ids_stands() -> None:
    got = oracle.set_rows(np.zeros((3, 2)), ids(2, 0, 2), np.array([[1.0, 1.0], [2.0, 2.0], [3.0, 3.0]]))
    assert got.tolist() == [[2, 2], [0, 0], [3, 3]]


@pytest.mark.parametrize("name", ["scatter_add_rows", "set_rows"])
@pytest.mark.parametrize("trailing", [(), (2,), (2, 3), (0,)])
def test_no_rows_change_nothing(normal: Any, name: str, trailing: tuple[int, ...]) -> None:
    base = normal(4, *trailing)
    assert getattr(oracle, name)(base, ids(), np.zeros((0, *trailing))).tolist() == base.tolist()


@pytest.mark.parametrize("name", ["scatter_add_rows", "set_rows"])
def test_inputs_are_not_written_though_donated(normal: Any, name: str) -> None:
    base, rows = normal(4, 2), normal(2, 2)
    before = base.copy(), rows.copy()
    getattr(oracle, name)(base, ids(1, 3), rows, donate=True)
    assert base.tolist() == before[0].tolist() and rows.tolist() == before[1].tolist()


def test_scattered_rows_of_any_rank_agree_with_a_loop(rng: Any, normal: Any) -> None:
    base, at, rows = normal(5, 2, 3), rng.integers(0, 5, 40, dtype=np.int32), normal(40, 2, 3)
    want = base.copy()
    for row, values in zip(at, rows, strict=True):
        want[row] += values
    assert oracle.scatter_add_rows(base, at, rows) == pytest.approx(want, rel=1e-12)
