from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from turret.spi.array_api import Hooks, required_from

TAILS = [(), (3,), (2, 3)]


@pytest.mark.parametrize("tail", TAILS)
@pytest.mark.parametrize(
    "ids", [np.zeros((), int), np.array([2, 0, 2]), np.array([[1, 4], [0, 0]]), np.zeros((0, 2), int)]
)
def test_gather_rows_takes_ids_of_any_shape(space: Any, normal: Any, tail: Any, ids: Any) -> None:
    table = normal(5, *tail)
    space.same(space.indexing.gather_rows(space.put(table), space.put(ids, "int32")), table[ids])


@pytest.mark.parametrize("shape", [(4,), (3, 4), (2, 3, 4), (0, 4)])
def test_gather_last_picks_one_of_each_row(space: Any, normal: Any, rng: Any, shape: Any) -> None:
    x, ids = normal(*shape), rng.integers(0, 4, shape[:-1])
    want = np.take_along_axis(x, np.asarray(ids)[..., None], axis=-1)[..., 0]
    space.same(space.indexing.gather_last(space.put(x), space.put(ids, "int32")), want)


@pytest.mark.parametrize("tail", TAILS)
@pytest.mark.parametrize("ids", [[3, 0, 3, 3], [1], []])
def test_scatter_add_adds_up_repeated_ids(space: Any, normal: Any, tail: Any, ids: list[int]) -> None:
    base, rows = normal(5, *tail), normal(len(ids), *tail)
    want = base.astype(np.float64)
    np.add.at(want, np.array(ids, np.int32), rows)
    placed = space.put(base)
    space.close(
        space.indexing.scatter_add_rows(placed, space.put(ids, "int32"), space.put(rows)), want.astype(np.float32)
    )
    space.same(placed, base)


@pytest.mark.parametrize("tail", TAILS)
@pytest.mark.parametrize("ids", [[3, 0], [1], [], [4, 3, 2, 1, 0]])
def test_set_rows_replaces_and_leaves_the_rest(space: Any, normal: Any, tail: Any, ids: list[int]) -> None:
    base, rows = normal(5, *tail), normal(len(ids), *tail)
    want = base.copy()
    want[np.array(ids, np.int32)] = rows
    placed = space.put(base)
    space.same(space.indexing.set_rows(placed, space.put(ids, "int32"), space.put(rows)), want)
    space.same(placed, base)


def test_one_of_several_rows_for_an_id_wins_whole(space: Any, normal: Any) -> None:
    rows = normal(3, 4)
    made = space.get(space.indexing.set_rows(space.put(normal(2, 4)), space.put([1, 1, 1], "int32"), space.put(rows)))
    assert any(np.array_equal(made[1], row) for row in rows)


def test_values_that_are_not_finite_stay_in_their_place(space: Any, normal: Any) -> None:
    base, rows = normal(4, 3), normal(4, 3)
    rows[0], rows[1, 1], rows[2, 2] = [np.inf, -np.inf, np.nan], np.inf, -np.inf
    ids = np.array([2, 0, 2, 3], np.int32)
    want = base.copy()
    with np.errstate(invalid="ignore"):
        np.add.at(want, ids, rows)
    space.close(space.indexing.scatter_add_rows(space.put(base), space.put(ids), space.put(rows)), want)
    want = base.copy()
    want[[1, 3]] = rows[:2]
    space.same(space.indexing.set_rows(space.put(base), space.put([1, 3], "int32"), space.put(rows[:2])), want)


def test_integers_and_halves_are_written_in_their_dtype(space: Any) -> None:
    ids, whole = space.put([0, 0], "int32"), np.array([[2**30], [5]], np.int32)
    made = space.indexing.scatter_add_rows(space.put(whole), ids, space.put(whole))
    space.same(made, np.array([[-(2**31) + 5], [5]], np.int32))
    for dtype in space.storage.device().dtypes & {"float16", "bfloat16"}:
        half = space.put(np.array([[1], [2]], np.float32), dtype)
        added = space.indexing.scatter_add_rows(half, ids, half)
        written = space.indexing.set_rows(half, space.put([1, 0], "int32"), half)
        assert space.storage.dtype_of(added) == space.storage.dtype_of(written) == dtype
        assert space.get(added).tolist() == [[4], [2]] and space.get(written).tolist() == [[2], [1]]


def test_the_same_scatter_gives_the_same_bits(space: Any, normal: Any, rng: Any) -> None:
    arrays = space.put(normal(7, 5)), space.put(rng.integers(0, 7, 200), "int32"), space.put(normal(200, 5))
    once, again = (space.get(space.indexing.scatter_add_rows(*arrays)) for _ in range(2))
    assert once.tobytes() == again.tobytes()


def test_empty_tables_and_rows_pass(eager_space: Any) -> None:
    none = eager_space.put(np.zeros(0, np.int32))
    for shape in ((0, 3), (4, 0)):
        base, rows = eager_space.put(np.zeros(shape, np.float32)), eager_space.put(np.zeros((0, shape[1]), np.float32))
        for write in (eager_space.indexing.scatter_add_rows, eager_space.indexing.set_rows):
            assert eager_space.get(write(base, none, rows)).shape == shape
    narrow = eager_space.put(np.zeros((4, 0), np.float32))
    ids, rows = eager_space.put([1, 1], "int32"), eager_space.put(np.zeros((2, 0), np.float32))
    assert eager_space.get(eager_space.indexing.scatter_add_rows(narrow, ids, rows)).shape == (4, 0)


@settings(max_examples=60, deadline=None)
@given(size=st.integers(1, 6), data=st.data())
def test_compositions_agree_with_writing_in_place(size: int, data: Any) -> None:
    indexing = required_from(np).indexing
    ids = np.array(data.draw(st.lists(st.integers(0, size - 1), max_size=8)), np.int32)
    rng = np.random.default_rng(len(ids))
    base, rows = (
        rng.integers(-9, 9, (size, 2)).astype(np.float32),
        rng.integers(-9, 9, (len(ids), 2)).astype(np.float32),
    )
    want = base.copy()
    np.add.at(want, ids, rows)
    assert np.array_equal(indexing.scatter_add_rows(base, ids, rows), want)
    unique, first = np.unique(ids, return_index=True)
    want = base.copy()
    want[unique] = rows[first]
    assert np.array_equal(indexing.set_rows(base, unique.astype(np.int32), rows[first]), want)


def test_hooks_are_told_of_donations() -> None:
    told: list[bool] = []

    def write(base: Any, ids: Any, rows: Any, donate: bool) -> Any:
        told.append(donate)
        return base

    indexing = required_from(np, hooks=Hooks(scatter_add_rows=write, set_rows=write)).indexing
    base = np.zeros((2, 1), np.float32)
    for method in (indexing.scatter_add_rows, indexing.set_rows):
        method(base, np.zeros(1, np.int32), base[:1])
        method(base, np.zeros(1, np.int32), base[:1], donate=True)
    assert told == [False, True] * 2
