from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from turret.spi import ShapeError

AXES = [0, 1, -1, (0, 2), (0, 1, 2), (-1, -3)]


@pytest.mark.parametrize("axis", AXES)
@pytest.mark.parametrize("keepdims", [False, True])
@pytest.mark.parametrize("name", ["sum", "mean", "max"])
def test_folding_follows_numpy_and_keeps_the_dtype(
    space: Any, normal: Any, name: str, axis: Any, keepdims: bool
) -> None:
    x = normal(2, 3, 4)
    got = getattr(space.reduction, name)(space.put(x), axis=axis, keepdims=keepdims)
    space.close(got, getattr(np, name)(x.astype(np.float64), axis=axis, keepdims=keepdims).astype(np.float32))


@pytest.mark.parametrize("length", [1, 63, 65, 1000])
def test_awkward_lengths_pass(eager_space: Any, normal: Any, length: int) -> None:
    x = normal(2, length)
    eager_space.close(
        eager_space.reduction.sum(eager_space.put(x), axis=1), x.sum(axis=1, dtype=np.float64).astype(np.float32), 1e-5
    )
    eager_space.same(eager_space.reduction.max(eager_space.put(x), axis=1), x.max(axis=1))


def test_integers_stay_int32_and_wrap(space: Any) -> None:
    x = np.array([2**31 - 1, 1], np.int32)
    space.same(space.reduction.sum(space.put(x), axis=0), np.array(-(2**31), np.int32))
    space.same(space.reduction.max(space.put(x), axis=0), np.array(2**31 - 1, np.int32))


def test_halves_accumulate_in_float32(space: Any) -> None:
    for dtype in space.storage.device().dtypes & {"float16", "bfloat16"}:
        large = space.put(np.full(128, 60000, np.float32), dtype)
        swing = space.put(np.array([[60000, 1]] * 2 + [[-60000, -1]] * 2, np.float32), dtype)
        for fold in (space.reduction.sum, space.reduction.mean):
            assert space.get(fold(swing, axis=0)).tolist() == [0, 0]
        mean, ones = space.reduction.mean(large, axis=0), space.put(np.ones(4096, np.float32), dtype)
        assert space.storage.dtype_of(mean) == dtype and space.get(mean) == space.get(large)[0]
        assert space.get(space.reduction.sum(ones, axis=0)) == 4096


def test_empty_axes_sum_to_zero_average_to_nan_and_have_no_maximum(space: Any) -> None:
    x = space.put(np.zeros((2, 0), np.float32))
    space.same(space.reduction.sum(x, axis=1), np.zeros(2, np.float32))
    space.same(space.reduction.mean(x, axis=1), np.full(2, np.nan, np.float32))
    for axis in (1, -1, (0, 1)):
        with pytest.raises(ShapeError, match=r"max over an axis of size 0.*\(2, 0\)"):
            space.reduction.max(x, axis=axis)
    with pytest.raises(ShapeError, match="argmax"):
        space.reduction.argmax(x, axis=1)
    space.same(space.reduction.max(x, axis=0), np.zeros(0, np.float32))


def test_nan_wins(space: Any) -> None:
    x = space.put(np.array([[1, np.nan, np.inf], [1, 2, 3]], np.float32))
    space.same(space.reduction.max(x, axis=1), np.array([np.nan, 3], np.float32))
    assert np.isnan(space.get(space.reduction.sum(x, axis=(0, 1))))


def test_overflow_is_silent(space: Any) -> None:
    x = space.put(np.full(2, 3e38, np.float32))
    space.same(space.reduction.sum(x, axis=0), np.array(np.inf, np.float32))


def test_argmax_is_the_first_of_the_greatest_in_int32(space: Any) -> None:
    x = space.put(np.array([[3, 1, 3, 2], [-1, -1, -1, -1]], np.float32))
    space.same(space.reduction.argmax(x, axis=1), np.array([0, 0], np.int32))
    space.same(space.reduction.argmax(x, axis=-1, keepdims=True), np.array([[0], [0]], np.int32))
    space.same(space.reduction.argmax(x, axis=0), np.zeros(4, np.int32))
    space.same(space.reduction.argmax(space.put(np.array([4, 9, 9], np.int32)), axis=0), np.array(1, np.int32))
