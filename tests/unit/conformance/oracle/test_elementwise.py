from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from turret.conformance.oracle import elementwise as oracle

INF, NAN = math.inf, math.nan


def assert_same(got: Any, want: list[Any]) -> None:
    np.testing.assert_array_equal(got, want, strict=False)


@pytest.mark.parametrize(
    ("name", "a", "b", "want"),
    [
        ("add", [1.0, INF, INF], [2.0, 1.0, -INF], [3.0, INF, NAN]),
        ("subtract", [1.0, INF, 1e308], [2.0, INF, -1e308], [-1.0, NAN, INF]),
        ("multiply", [3.0, 0.0, -1e200], [2.0, INF, 1e200], [6.0, NAN, -INF]),
        ("divide", [3.0, 1.0, 0.0], [2.0, 0.0, 0.0], [1.5, INF, NAN]),
        ("maximum", [1.0, NAN, 2.0], [2.0, 1.0, NAN], [2.0, NAN, NAN]),
        ("minimum", [1.0, NAN, 2.0], [2.0, 1.0, NAN], [1.0, NAN, NAN]),
        ("equal", [1.0, NAN, INF], [1.0, NAN, -INF], [True, False, False]),
        ("less", [1.0, NAN, 2.0], [2.0, 1.0, 2.0], [True, False, False]),
        ("less_equal", [1.0, NAN, 2.0], [2.0, 1.0, 2.0], [True, False, True]),
    ],
)
def test_binary_operations_follow_ieee_754(name: str, a: list[float], b: list[float], want: list[Any]) -> None:
    assert_same(getattr(oracle, name)(np.array(a), np.array(b)), want)


@pytest.mark.parametrize(
    ("name", "x", "want"),
    [
        ("negative", [1.0, -INF, NAN], [-1.0, INF, NAN]),
        ("exp", [0.0, -INF, 1000.0, NAN], [1.0, 0.0, INF, NAN]),
        ("log", [1.0, 0.0, -1.0, INF], [0.0, -INF, NAN, INF]),
        ("sqrt", [4.0, 0.0, -1.0, INF], [2.0, 0.0, NAN, INF]),
        ("rsqrt", [4.0, 0.0, -1.0, INF], [0.5, INF, NAN, 0.0]),
        ("tanh", [0.0, INF, -INF, NAN], [0.0, 1.0, -1.0, NAN]),
        ("isfinite", [1.0, INF, -INF, NAN], [True, False, False, False]),
    ],
)
def test_unary_operations_follow_ieee_754(name: str, x: list[float], want: list[Any]) -> None:
    assert_same(getattr(oracle, name)(np.array(x)), want)


@pytest.mark.parametrize(
    ("name", "one"),
    [("exp", math.exp), ("log", math.log), ("sqrt", math.sqrt), ("tanh", math.tanh), ("erf", math.erf)],
)
def test_functions_agree_with_the_standard_library(name: str, one: Callable[[float], float]) -> None:
    x = np.linspace(0.01, 5, 300)
    assert getattr(oracle, name)(x) == pytest.approx(np.array([one(each) for each in x]), rel=1e-15)


def test_the_zero_that_is_negated_changes_its_sign() -> None:
    assert math.copysign(1, oracle.negative(np.array([0.0]))[0]) == -1


def test_a_python_scalar_stands_for_either_operand() -> None:
    x = np.array([1.0, 4.0])
    assert oracle.subtract(2.0, x).tolist() == [1.0, -2.0] and oracle.divide(x, 2.0).tolist() == [0.5, 2.0]
    assert oracle.maximum(2.0, x).tolist() == [2.0, 4.0] and oracle.less(2.0, x).tolist() == [False, True]


def test_int32_stays_int32_and_wraps() -> None:
    x = np.array([2**31 - 1], np.int32)
    got = oracle.add(x, 1)
    assert got.dtype == np.int32 and got.tolist() == [-(2**31)]


def test_operands_broadcast() -> None:
    assert oracle.add(np.array([[1.0], [2.0]]), np.array([10.0, 20.0])).tolist() == [[11, 21], [12, 22]]


def test_where_does_not_look_at_what_it_does_not_choose() -> None:
    got = oracle.where(np.array([True, False]), np.array([1.0, NAN]), 7.0)
    assert got.tolist() == [1.0, 7.0]


def test_logical_and_is_true_where_both_are() -> None:
    a, b = np.array([False, False, True, True]), np.array([False, True, False, True])
    assert oracle.logical_and(a, b).tolist() == [False, False, False, True]
