from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

SHAPES = [(1,), (63,), (65,), (2, 3), (0, 3), ()]
BINARY = {
    "add": np.add,
    "subtract": np.subtract,
    "multiply": np.multiply,
    "divide": np.divide,
    "maximum": np.maximum,
    "minimum": np.minimum,
    "equal": np.equal,
    "less": np.less,
    "less_equal": np.less_equal,
}
UNARY: dict[str, Any] = {
    "negative": np.negative,
    "exp": np.exp,
    "log": lambda x: np.log(np.abs(x)),
    "sqrt": lambda x: np.sqrt(np.abs(x)),
    "rsqrt": lambda x: 1 / np.sqrt(np.abs(x)),
    "tanh": np.tanh,
    "erf": np.vectorize(math.erf, otypes=[float]),
}
ODD = np.array([0.0, -0.0, 1.0, -1.0, np.inf, -np.inf, np.nan, 2.0**125], np.float32)  # its inverse is normal


def of_odd_pairs(function: Any) -> Any:
    with np.errstate(all="ignore"):
        return function(ODD[:, None], ODD[None, :])


@pytest.mark.parametrize("name", BINARY)
@pytest.mark.parametrize("shape", SHAPES)
def test_binary_functions_follow_numpy_on_every_shape(eager_space: Any, normal: Any, name: str, shape: Any) -> None:
    a, b = normal(*shape), normal(*shape)
    got = getattr(eager_space.elementwise, name)(eager_space.put(a), eager_space.put(b))
    eager_space.close(got, BINARY[name](a, b), 1e-7)


@pytest.mark.parametrize("name", BINARY)
def test_binary_functions_broadcast_take_scalars_and_keep_the_dtype(space: Any, normal: Any, name: str) -> None:
    function, numpy = getattr(space.elementwise, name), BINARY[name]
    a, b = normal(2, 1, 3), normal(4, 1)
    space.close(function(space.put(a), space.put(b)), numpy(a, b), 1e-6)
    space.close(function(space.put(a), 0.5), numpy(a, np.float32(0.5)), 1e-6)
    space.close(function(0.5, space.put(a)), numpy(np.float32(0.5), a), 1e-6)
    whole = np.array([-3, 0, 7], np.int32)
    if name != "divide":
        space.same(function(space.put(whole), 2), numpy(whole, np.int32(2)))
        space.same(function(space.put(whole), space.put(whole[::-1])), numpy(whole, whole[::-1]))


@pytest.mark.parametrize("name", BINARY)
def test_binary_functions_treat_the_odd_values_as_numpy_does_and_say_nothing(space: Any, name: str) -> None:
    got = getattr(space.elementwise, name)(space.put(ODD[:, None]), space.put(ODD[None, :]))
    space.same(got, of_odd_pairs(BINARY[name]))


@pytest.mark.parametrize("name", UNARY)
@pytest.mark.parametrize("shape", SHAPES)
def test_unary_functions_follow_numpy_on_every_shape(eager_space: Any, normal: Any, name: str, shape: Any) -> None:
    x = np.asarray(normal(*shape) if name in ("negative", "exp", "tanh", "erf") else np.abs(normal(*shape)) + 0.1)
    got = getattr(eager_space.elementwise, name)(eager_space.put(x))
    eager_space.close(got, np.asarray(UNARY[name](x.astype(np.float64)), np.float32), 5e-7)


@pytest.mark.parametrize("name", UNARY)
def test_unary_functions_keep_the_dtype_of_halves_and_of_rank_zero(space: Any, name: str) -> None:
    for dtype in space.storage.device().dtypes & {"float16", "bfloat16", "float32", "float64"}:
        got = getattr(space.elementwise, name)(space.put(np.array(0.5, np.float32), dtype))
        assert space.storage.dtype_of(got) == dtype and space.get(got).shape == ()
        assert space.get(got) == pytest.approx(
            float(UNARY[name](0.5)), rel=1e-2 if dtype in ("float16", "bfloat16") else 1e-6
        )


@pytest.mark.parametrize(
    ("name", "x", "want"),
    [
        ("exp", [1000, -1000, np.inf, -np.inf], [np.inf, 0, np.inf, 0]),
        ("log", [0, -1, np.inf], [-np.inf, np.nan, np.inf]),
        ("sqrt", [0, -1, np.inf], [0, np.nan, np.inf]),
        ("rsqrt", [0, -1, np.inf], [np.inf, np.nan, 0]),
        ("tanh", [1e30, -np.inf], [1, -1]),
        ("erf", [1e30, -np.inf, np.nan], [1, -1, np.nan]),
        ("negative", [np.nan, np.inf], [np.nan, -np.inf]),
    ],
)
def test_limits_are_reached_without_a_warning(space: Any, name: str, x: list[float], want: list[float]) -> None:
    got = getattr(space.elementwise, name)(space.put(np.array(x, np.float32)))
    space.same(got, np.array(want, np.float32))


def test_isfinite_tells_infinities_and_nan(space: Any) -> None:
    space.same(space.elementwise.isfinite(space.put(ODD)), np.isfinite(ODD))
    space.same(space.elementwise.isfinite(space.put(np.float32(1))), np.array(True))


def test_logical_and_is_of_booleans(space: Any) -> None:
    a, b = np.array([True, True, False, False]), np.array([True, False, True, False])
    space.same(space.elementwise.logical_and(space.put(a), space.put(b)), a & b)


def test_where_never_looks_at_what_it_does_not_choose(space: Any) -> None:
    condition = space.put(np.array([True, False]))
    a, b = space.put(np.array([1, np.nan], np.float32)), space.put(np.array([np.inf, 2], np.float32))
    where = space.elementwise.where
    space.same(where(condition, a, b), np.array([1, 2], np.float32))
    space.same(where(condition, a, 7.0), np.array([1, 7], np.float32))
    space.same(where(condition, 7.0, b), np.array([7, 2], np.float32))
    space.same(where(condition, 0, space.put(np.array([5, 6], np.int32))), np.array([0, 6], np.int32))
    space.same(where(space.put(np.array([[True], [False]])), a, b), np.array([[1, np.nan], [np.inf, 2]], np.float32))


def test_rank_zero_results_are_arrays(space: Any) -> None:
    one = space.put(np.float32(1))
    assert space.get(space.elementwise.add(one, one)).shape == ()
    assert space.get(space.elementwise.less(one, 2.0)).shape == ()
    assert space.get(space.elementwise.where(space.elementwise.equal(one, one), one, 0.0)).shape == ()
