from __future__ import annotations

import math
from typing import Any, get_args

import numpy as np
import pytest

from turret.conformance.given import Draw, Given, View, rounded
from turret.conformance.subject import Subject
from turret.spi import DTYPES, FLOATS, DType, host_dtype

VIEWS: tuple[View, ...] = get_args(View)
HARD = np.array(
    [
        *(0.0, -0.0, 1.0, -1.0, 1 / 3, 65504.0, 65519.9, 65520.0, 70000.0, 3.3895314e38, 3.4e38, -3.4e38, 1e39, -1e39),
        *(1e-40, -1e-45, 2.0**-133, 2.0**-134, 2.0**-24, 2.0**-25, 6e-8, math.inf, -math.inf, math.nan),
        *(1 + 2**-8, 1 + 3 * 2**-8, 1 + 2**-8 + 2**-20, 256.5, 257.0, 259.0),
    ]
)


def bits(x: Any) -> Any:
    return np.where(np.isnan(x), np.float32(0), x).astype(np.float32).view(np.uint32)


def test_bfloat16_is_rounded_as_the_library_that_defines_it_does() -> None:
    ml_dtypes = pytest.importorskip("ml_dtypes")
    rng = np.random.default_rng(1)
    some = rng.integers(0, 2**32, 20_000, dtype=np.uint32).view(np.float32)
    with np.errstate(all="ignore"):
        values = np.concatenate([HARD.astype(np.float32), some, rng.standard_normal(5000).astype(np.float32)])
        want = values.astype(ml_dtypes.bfloat16).astype(np.float32)
    got = rounded(values, "bfloat16")
    assert got.dtype == np.float32
    assert np.array_equal(np.isnan(got), np.isnan(want))
    assert np.array_equal(bits(got), bits(want))


@pytest.mark.parametrize("dtype", ["float32", "float16", "float64"])
def test_other_floats_are_rounded_to_nearest(dtype: DType) -> None:
    with np.errstate(all="ignore"):
        want = HARD.astype(dtype)
    assert np.array_equal(rounded(HARD, dtype), want, equal_nan=True)


@pytest.mark.parametrize("dtype", DTYPES)
def test_rounding_twice_changes_nothing_and_keeps_the_shape(dtype: DType) -> None:
    for shape in ((), (0,), (3,), (2, 0, 3), (2, 3)):
        once = rounded(np.full(shape, 1.7), dtype)
        assert once.shape == shape
        assert once.dtype == host_dtype(dtype)
        assert once.flags.c_contiguous
        assert np.array_equal(rounded(once, dtype), once)


def test_exact_values_are_float64_for_floats_and_themselves_for_the_rest() -> None:
    draw = Draw(0, "a/b/c")
    assert draw.normal(3, dtype="bfloat16").exact.dtype == np.float64
    assert draw.integers(3, low=0, high=9).exact.dtype == np.int32
    assert draw.booleans(3).exact.dtype == np.bool_


@pytest.mark.parametrize("dtype", ["float32", "int32", "bool", "uint8", "float16"])
@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("shape", [(), (1,), (5,), (4, 3), (2, 3, 4), (0, 3), (3, 0)])
def test_a_view_shows_the_values_whatever_lies_between_them(
    subject: Subject, dtype: DType, view: View, shape: tuple[int, ...]
) -> None:
    required = subject.table.required
    given = Draw(0, "a/b/c").integers(*shape, low=0, high=2, dtype=dtype, view=view)
    array, whole = given.put(required.storage, required.layout)
    assert required.storage.dtype_of(array) == dtype
    assert np.array_equal(required.storage.to_host(array), given.host)
    assert tuple(array.shape) == given.shape == shape
    assert isinstance(whole, subject.native_type)


@pytest.mark.parametrize("view", ["transposed", "strided", "offset", "repeated"])
def test_a_view_is_a_view_and_not_a_contiguous_copy(subject: Subject, view: View) -> None:
    required = subject.table.required
    array, whole = Draw(0, "a/b/c").normal(4, 6, view=view).put(required.storage, required.layout)
    assert np.shares_memory(array, whole)
    assert not array.flags.c_contiguous or view == "offset"
    assert array.size != whole.size or view == "transposed"


def test_a_reader_that_ignores_strides_or_offsets_meets_nan(subject: Subject) -> None:
    required = subject.table.required
    for view in ("strided", "offset"):
        array, whole = Draw(0, "a/b/c").normal(4, 6, view=view).put(required.storage, required.layout)
        flat = np.asarray(whole).reshape(-1)[: array.size]
        assert np.isnan(flat).any()


def test_every_row_of_a_repeated_view_is_the_first() -> None:
    given = Draw(0, "a/b/c").normal(5, 3, view="repeated")
    assert (given.host == given.host[0]).all()


def test_the_same_seed_and_case_draw_the_same_whatever_ran_before() -> None:
    def drawn(seed: int, case: str) -> list[Given]:
        draw = Draw(seed, case)
        return [draw.normal(4, 3), draw.uniform(5, low=-1, high=1), draw.integers(6, low=0, high=9), draw.booleans(7)]

    first = drawn(0, "matmul/product/M1-K1-N1-f32")
    drawn(5, "something/else/f32")
    again = drawn(0, "matmul/product/M1-K1-N1-f32")
    assert all(np.array_equal(a.host, b.host) for a, b in zip(first, again, strict=True))
    for other in (drawn(1, "matmul/product/M1-K1-N1-f32"), drawn(0, "matmul/product/M1-K1-N1-f64")):
        assert not np.array_equal(first[0].host, other[0].host)


def test_draws_keep_to_their_ranges() -> None:
    draw = Draw(2**32 - 1, "a/b/c")
    assert set(np.unique(draw.integers(500, low=3, high=6).host)) == {3, 4, 5}
    uniform = draw.uniform(500, low=-2.0, high=-1.0).host
    assert uniform.min() >= -2 and uniform.max() <= -1
    shifted = draw.normal(5000, scale=0.5, shift=3.0).host
    assert abs(shifted.mean() - 3) < 0.05 and abs(shifted.std() - 0.5) < 0.05


@pytest.mark.parametrize("dtype", sorted(FLOATS))
def test_drawn_values_are_exact_in_their_dtype(dtype: DType) -> None:
    given = Draw(0, "a/b/c").normal(300, dtype=dtype)
    assert np.array_equal(rounded(given.exact, dtype), given.host)
