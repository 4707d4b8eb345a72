from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from turret.conformance.tolerances import COMPUTED_IN, FORMATS, budget, compare, growth, shake
from turret.spi import DTYPES, FLOATS, DType

LARGEST = float(np.finfo(np.float32).max)
ml_dtypes: Any = pytest.importorskip("ml_dtypes")
NATIVE: dict[DType, Any] = {
    "float64": np.float64,
    "float32": np.float32,
    "float16": np.float16,
    "bfloat16": ml_dtypes.bfloat16,
}


def judged(got: Any, want: Any, allowed: Any = 1e-6, dtype: DType = "float32") -> Any:
    wanted = np.asarray(want, np.float64)
    carrier = np.float64 if dtype == "float64" else np.float32
    return compare(np.asarray(got, carrier), wanted, np.broadcast_to(np.float64(allowed), wanted.shape), dtype)


@pytest.mark.parametrize("dtype", sorted(FLOATS))
def test_formats_are_those_of_the_library_that_defines_them(dtype: DType) -> None:
    known, form = ml_dtypes.finfo(NATIVE[dtype]), FORMATS[dtype]
    assert form.greatest == float(known.max)
    assert form.normal == float(known.smallest_normal)
    assert form.spacing == float(known.smallest_subnormal)
    assert 2 * form.unit == float(known.eps)


def test_halves_are_computed_in_float32() -> None:
    assert set(COMPUTED_IN) == set(FLOATS) == set(DTYPES) & set(FORMATS)
    assert COMPUTED_IN["float16"] == COMPUTED_IN["bfloat16"] == "float32"


def test_the_right_value_uses_nothing_and_half_the_budget_half() -> None:
    assert judged([1.0, 2.0], [1.0, 2.0]).used == 0
    half = judged([1.0, 2.5], [1.0, 2.0], 1.0)
    assert half.good
    assert (half.used, half.worst, half.got, half.want, half.allowed) == (0.5, (1,), 2.5, 2.0, 1.0)


@pytest.mark.parametrize("factor", [1.01, 2.0, 10.0, 1e6])
@pytest.mark.parametrize("sign", [-1, 1])
def test_more_than_the_budget_fails_and_says_by_how_much(factor: float, sign: int) -> None:
    verdict = judged([1.0, 1.0 + sign * factor * 2**-10], [1.0, 1.0], 2**-10)
    assert not verdict.good
    assert verdict.used == pytest.approx(factor, rel=1e-2)
    assert verdict.worst == (1,)


@pytest.mark.parametrize("dtype", sorted(FLOATS))
def test_ten_budgets_fail_in_every_format_and_size(dtype: DType) -> None:
    rng = np.random.default_rng(3)
    want = rng.standard_normal(200) * 10.0 ** rng.integers(-4, 4, 200)
    allowed = budget(want, np.abs(want) * 1e-6, dtype, flushes=False)
    for at in range(0, 200, 20):
        wrong = want.copy()
        wrong[at] += 10 * allowed[at]
        verdict = compare(wrong, want, allowed, "float64")
        assert not verdict.good
        assert verdict.worst == (at,)


@pytest.mark.parametrize(
    ("got", "want", "good"),
    [
        (math.nan, math.nan, True),
        (1.0, math.nan, False),
        (math.inf, math.nan, False),
        (math.nan, 1.0, False),
        (math.nan, math.inf, False),
        (math.inf, math.inf, True),
        (-math.inf, math.inf, False),
        (LARGEST, math.inf, False),
        (math.inf, 1.0, False),
        (math.inf, LARGEST / 2, False),
        (0.0, -0.0, True),
    ],
)
@pytest.mark.parametrize("allowed", [0.0, 1e-6, 1e30])
def test_nan_matches_nan_alone_and_an_infinity_itself(got: float, want: float, good: bool, allowed: float) -> None:
    assert judged([0.5, got], [0.5, want], allowed).good is good


@pytest.mark.parametrize("sign", [-1.0, 1.0])
def test_a_truth_beyond_the_format_is_an_infinity_of_its_sign(sign: float) -> None:
    assert judged([sign * math.inf], [sign * 1e39]).good
    assert not judged([-sign * math.inf], [sign * 1e39]).good
    assert not judged([sign * LARGEST], [sign * 1e39]).good
    assert judged([sign * math.inf], [sign * 70000.0], dtype="float16").good
    assert not judged([sign * 65504.0], [sign * 70000.0], dtype="float16").good


def test_near_the_greatest_number_a_budget_may_reach_over_the_edge_from_both_sides() -> None:
    for want in (LARGEST * (1 - 2**-23), LARGEST * (1 + 2**-22)):
        allowed = LARGEST * 2**-20
        assert judged([LARGEST], [want], allowed).good
        assert judged([math.inf], [want], allowed).good
        assert not judged([-math.inf], [want], allowed).good
        assert not judged([LARGEST * 0.9], [want], allowed).good


def test_a_budget_of_zero_wants_the_value_itself() -> None:
    assert judged([0.1], [np.float32(0.1)], 0.0).good
    assert judged([np.nextafter(np.float32(0.1), np.float32(1))], [np.float32(0.1)], 0.0).used == math.inf


@pytest.mark.parametrize("shape", [(0,), (3, 0), (0, 2, 5)])
def test_nothing_to_compare_uses_nothing(shape: tuple[int, ...]) -> None:
    verdict = judged(np.zeros(shape), np.zeros(shape))
    assert verdict.good
    assert verdict.used == 0


def test_a_scalar_has_an_empty_index() -> None:
    assert judged(2.0, 1.0).worst == ()


def test_a_budget_is_the_error_and_the_rounding_to_the_dtype_and_underflow() -> None:
    want, error = np.array([0.0, 1.0, -3.0]), np.array([0.0, 1e-7, 1e-7])
    for dtype, narrowing in (("float32", 0.0), ("float16", 2.0**-11), ("bfloat16", 2.0**-8), ("float64", 2.0**-51)):
        got = budget(want, error, dtype, flushes=False)  # type: ignore[arg-type]
        floor = FORMATS[dtype].spacing  # type: ignore[index]
        assert np.allclose(got, error + narrowing * np.abs(want) + floor, rtol=1e-12, atol=0)


def test_subnormals_may_vanish_where_the_device_flushes_them_and_nowhere_else() -> None:
    want = np.array([1e-40])
    gone = np.zeros(1, np.float32)
    assert compare(gone, want, budget(want, np.zeros(1), "float32", flushes=True), "float32").good
    assert not compare(gone, want, budget(want, np.zeros(1), "float32", flushes=False), "float32").good
    normal = np.array([1.3e-38])
    assert not compare(gone, normal, budget(normal, np.zeros(1), "float32", flushes=True), "float32").good


def test_a_truth_that_is_not_finite_has_a_finite_budget() -> None:
    got = budget(np.array([np.nan, np.inf, -np.inf]), np.zeros(3), "float32", flushes=False)
    assert not np.isnan(got).any()


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_every_rounding_to_nearest_is_within_the_budget(dtype: DType) -> None:
    rng = np.random.default_rng(5)
    want = rng.standard_normal(5000) * 10.0 ** rng.integers(-9, 4, 5000)
    rounded = want.astype(NATIVE[dtype]).astype(np.float64)
    assert compare(rounded, want, budget(want, np.zeros(5000), dtype, flushes=False), dtype).good


def test_growth_is_the_worst_case_for_few_terms_and_the_likely_one_for_many() -> None:
    assert [growth(n) for n in (0, 1, 4, 25)] == [0, 1, 4, 25]
    assert growth(10_000) == 500
    values = [growth(n) for n in range(1, 3000)]
    assert values == sorted(values)


def test_a_shake_is_what_one_layer_rounds() -> None:
    assert shake(16) == 16 * 2.0**-24
    assert shake(16, "bfloat16") == shake(16)
