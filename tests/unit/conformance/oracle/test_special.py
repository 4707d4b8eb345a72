from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import scipy.special

from turret.conformance.oracle.special import ERF, erf


def test_erf_agrees_with_another_library_to_the_last_bits() -> None:
    x = np.concatenate([np.linspace(-7, 7, 2001), [0.0, 1e-300, -1e-20, 1e30, -1e30]])
    assert erf(x) == pytest.approx(scipy.special.erf(x), rel=1e-15, abs=0)


def test_erf_of_infinities_and_nan() -> None:
    got = erf(np.array([np.inf, -np.inf, np.nan, -0.0]))
    assert got[:2].tolist() == [1, -1] and np.isnan(got[2]) and math.copysign(1, got[3]) == -1


@pytest.mark.parametrize("shape", [(), (0,), (3,), (2, 0, 4), (2, 3)])
def test_erf_keeps_the_shape_and_gives_float64(shape: tuple[int, ...]) -> None:
    got = erf(np.full(shape, 0.5))
    assert isinstance(got, np.ndarray) and got.dtype == np.float64 and got.shape == shape


def test_another_array_class_receives_the_ufunc_and_its_answer_is_passed_on() -> None:
    class Recorder:
        def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **options: Any) -> Any:
            return ufunc, method, inputs, options

    x = Recorder()
    assert erf(x) == (ERF, "__call__", (x,), {})
