from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from turret.spi.array_api import Hooks, required_from

POINTS = np.concatenate([np.linspace(-7, 7, 20001), np.geomspace(1e-30, 1, 400), 1 + np.linspace(-1e-6, 1e-6, 41)])


def composed(dtype: str, points: Any) -> tuple[Any, Any]:
    x = points.astype(dtype)
    made = required_from(np, hooks=Hooks(quiet=lambda: np.errstate(all="ignore"))).elementwise.erf(x)
    assert made.dtype == x.dtype
    return made.astype(np.float64), np.array([math.erf(float(p)) for p in x])


@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 2e-7), ("float64", 1e-14), ("float16", 5e-4)])
def test_the_composed_erf_is_within_its_tolerance(dtype: str, tolerance: float) -> None:
    got, want = composed(dtype, POINTS)
    assert np.abs(got - want).max() <= tolerance


@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 3e-7), ("float64", 2e-15)])
def test_the_composed_erf_is_relatively_accurate_near_zero(dtype: str, tolerance: float) -> None:
    got, want = composed(dtype, np.geomspace(1e-30, 0.5, 1000))
    assert np.abs(got / want - 1).max() <= tolerance


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_the_composed_erf_is_odd_and_bounded(dtype: str) -> None:
    got, _ = composed(dtype, POINTS)
    mirrored, _ = composed(dtype, -POINTS)
    assert np.array_equal(got, -mirrored) and np.abs(got).max() == 1


def test_the_composed_erf_keeps_the_sign_of_zero_and_passes_nan_on() -> None:
    got, _ = composed("float32", np.array([-0.0, 0.0, np.nan, np.inf, -np.inf, 1e30, -3e38]))
    assert math.copysign(1, got[0]) == -1 and got[1] == 0 and np.isnan(got[2])
    assert got[3:].tolist() == [1, -1, 1, -1]
