from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from turret.spi import ShapeError
from turret_cuda.place import Place
from turret_cuda.reduction import CudaReduction
from turret_cuda.storage import CudaStorage

FLOATS = ("float32", "float64", "float16", "bfloat16")
UNIT = {"float32": 2.0**-23, "float64": 2.0**-52, "float16": 2.0**-10, "bfloat16": 2.0**-7}
NATIVE = {name: np.dtype(name) for name in ("float32", "float64", "float16", "int32", "int64")}
NATIVE["bfloat16"] = np.dtype(ml_dtypes.bfloat16)

FORMS: list[tuple[tuple[int, ...], int | tuple[int, ...]]] = [
    ((1,), 0),
    ((7, 1), 1),
    ((5, 65), 1),
    ((5, 65), -2),
    ((5, 300), (-1,)),
    ((70, 9), 1),
    ((4, 5, 6), (0, 2)),
    ((4, 5, 6), (2, 0)),
    ((4, 1, 6), (0, 2)),
    ((4, 5, 6), 1),
    ((2, 3, 4, 5), (1, -1)),
    ((2, 3, 4, 5), (0, 1, 2, 3)),
    ((3, 4), ()),
]
LONG: list[tuple[tuple[int, ...], int]] = [((2, 9001), 1), ((3001, 3), 0), ((20_001,), 0), ((2, 700, 2), 1)]


@pytest.fixture
def reduction(place: Place) -> CudaReduction:
    return CudaReduction(place)


@pytest.fixture
def storage(place: Place) -> CudaStorage:
    return CudaStorage(place)


def drawn(shape: tuple[int, ...], dtype: str, seed: int = 3) -> np.ndarray:
    """Normal values with a mean that are exact in `dtype`, as float64."""
    values = np.random.default_rng(seed).normal(0.5, 1.0, shape)
    return values.astype(NATIVE[dtype]).astype(np.float64)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("keepdims", [False, True])
@pytest.mark.parametrize(("shape", "axis"), FORMS)
def test_folds_agree_with_float64(
    reduction: CudaReduction, storage: CudaStorage, shape: Any, axis: Any, keepdims: bool, dtype: Any
) -> None:
    host = drawn(shape, dtype)
    x = storage.from_host(host, dtype=dtype)
    size = np.abs(host).sum(axis=axis, keepdims=keepdims)
    for method, bound in (("sum", size), ("mean", np.abs(host).mean(axis=axis, keepdims=keepdims)), ("max", 0 * size)):
        got = getattr(reduction, method)(x, axis=axis, keepdims=keepdims)
        want = getattr(host, method)(axis=axis, keepdims=keepdims)
        assert storage.dtype_of(got) == dtype
        assert got.shape == np.shape(want)
        assert (np.abs(storage.to_host(got) - want) <= 2 * UNIT[dtype] * bound).all()


@pytest.mark.parametrize(("shape", "axis"), LONG)
def test_long_axes_are_cut_and_lose_nothing(
    reduction: CudaReduction, storage: CudaStorage, shape: Any, axis: int
) -> None:
    whole = np.random.default_rng(1).integers(-9, 10, shape)
    x = storage.from_host(whole.astype(np.float32))
    np.testing.assert_array_equal(storage.to_host(reduction.sum(x, axis=axis)), whole.sum(axis))
    np.testing.assert_allclose(storage.to_host(reduction.mean(x, axis=axis)), whole.mean(axis), 1e-6)
    peak = np.random.default_rng(2).permutation(whole.size).reshape(shape).astype(np.float32)
    x = storage.from_host(peak)
    np.testing.assert_array_equal(storage.to_host(reduction.max(x, axis=axis)), peak.max(axis))
    np.testing.assert_array_equal(storage.to_host(reduction.argmax(x, axis=axis)), peak.argmax(axis))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("axis", [0, 1])
def test_halves_are_summed_in_float32_and_rounded_once(
    reduction: CudaReduction, storage: CudaStorage, dtype: Any, axis: int
) -> None:
    shape = (5000, 2) if axis == 0 else (2, 5000)
    host = drawn(shape, dtype)
    got = storage.to_host(reduction.sum(storage.from_host(host, dtype=dtype), axis=axis))
    want = host.sum(axis).astype(np.float32).astype(NATIVE[dtype]).astype(np.float32)
    np.testing.assert_allclose(got, want, UNIT[dtype] if dtype == "float16" else 0)
    large = storage.from_host(np.full(shape, 60_000.0), dtype=dtype)
    kept = np.float32(60_000).astype(NATIVE[dtype])
    np.testing.assert_array_equal(storage.to_host(reduction.mean(large, axis=axis)), np.full(2, kept, np.float32))


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_views_are_read_where_they_lie(
    reduction: CudaReduction, storage: CudaStorage, place: Place, dtype: Any
) -> None:
    import cupy

    host = drawn((6, 10, 7), dtype)
    x = storage.from_host(host, dtype=dtype)
    pairs = [
        (x.transpose(2, 0, 1), host.transpose(2, 0, 1)),
        (x.transpose(1, 2, 0), host.transpose(1, 2, 0)),
        (x[1:5, ::3, 2:], host[1:5, ::3, 2:]),
        (cupy.broadcast_to(x[:1], (4, 10, 7)), np.broadcast_to(host[:1], (4, 10, 7))),
    ]
    for view, truth in pairs:
        for axis in (0, 1, 2, (0, 1), (0, 2), (1, 2)):
            got = storage.to_host(reduction.sum(view, axis=axis))
            np.testing.assert_allclose(got, truth.sum(axis), 2 * UNIT[dtype], 2 * UNIT[dtype] * np.abs(truth).sum())
            np.testing.assert_array_equal(storage.to_host(reduction.max(view, axis=axis)), truth.max(axis))
        for axis in (0, 1, 2):
            np.testing.assert_array_equal(storage.to_host(reduction.argmax(view, axis=axis)), truth.argmax(axis))


def test_results_share_no_memory_with_the_input(reduction: CudaReduction, storage: CudaStorage) -> None:
    x = storage.from_host(np.ones((1, 3), np.float32))
    for axis in (0, ()):
        assert reduction.sum(x, axis=axis).data.ptr != x.data.ptr


@pytest.mark.parametrize("dtype", ["int32", "int64"])
@pytest.mark.parametrize("shape", [(5000, 3), (3, 5000), (4, 5)])
def test_integers_wrap_and_stay_exact(
    reduction: CudaReduction, storage: CudaStorage, dtype: Any, shape: tuple[int, int]
) -> None:
    top = int(np.iinfo(dtype).max)
    host = np.random.default_rng(5).integers(top - 40, top, shape, dtype=dtype)
    x = storage.from_host(host)
    for axis in (0, 1):
        for method in ("sum", "max"):
            got = storage.to_host(getattr(reduction, method)(x, axis=axis))
            assert got.dtype == dtype
            np.testing.assert_array_equal(got, getattr(host, method)(axis=axis, **_kept(method, dtype)))
        np.testing.assert_array_equal(storage.to_host(reduction.argmax(x, axis=axis)), host.argmax(axis))


def _kept(method: str, dtype: str) -> dict[str, Any]:
    return {"dtype": dtype} if method == "sum" else {}


def test_nothing_sums_to_zero_and_has_no_mean(reduction: CudaReduction, storage: CudaStorage) -> None:
    for dtype in FLOATS:
        x = storage.from_host(np.zeros((3, 0)).astype(NATIVE[dtype]))
        np.testing.assert_array_equal(storage.to_host(reduction.sum(x, axis=1)), np.zeros(3))
        assert np.isnan(storage.to_host(reduction.mean(x, axis=1))).all()
        assert storage.to_host(reduction.sum(x, axis=0)).shape == (0,)
    whole = storage.from_host(np.zeros((2, 0, 3), np.int32))
    np.testing.assert_array_equal(storage.to_host(reduction.sum(whole, axis=1)), np.zeros((2, 3), np.int32))
    assert reduction.argmax(storage.from_host(np.zeros((0, 4), np.float32)), axis=1).shape == (0,)


@pytest.mark.parametrize("method", ["max", "argmax"])
@pytest.mark.parametrize(("shape", "axis"), [((0,), 0), ((3, 0), -1), ((0, 0), 1)])
def test_the_greatest_of_nothing_is_refused(
    reduction: CudaReduction, storage: CudaStorage, method: str, shape: tuple[int, ...], axis: int
) -> None:
    with pytest.raises(ShapeError, match="without elements"):
        getattr(reduction, method)(storage.from_host(np.zeros(shape, np.float32)), axis=axis)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("shape", [(3, 9), (3, 40), (3, 5000)])
@pytest.mark.parametrize("columns", [False, True])
def test_nan_and_infinities_win(
    reduction: CudaReduction, storage: CudaStorage, dtype: Any, shape: tuple[int, int], columns: bool
) -> None:
    host = drawn(shape, dtype)
    late = shape[1] * 2 // 3
    host[0, [late, late + 2]] = np.nan
    host[0, 2] = np.inf
    host[1] = -np.inf
    host[2, -1] = np.inf
    x = storage.from_host(host.T if columns else host, dtype=dtype)
    axis = 0 if columns else 1
    np.testing.assert_array_equal(storage.to_host(reduction.max(x, axis=axis)), [np.nan, -np.inf, np.inf])
    np.testing.assert_array_equal(storage.to_host(reduction.argmax(x, axis=axis)), [late, 0, shape[1] - 1])
    assert np.isnan(storage.to_host(reduction.sum(x, axis=axis))[0])


@settings(deadline=None, max_examples=30)
@given(
    rows=st.integers(1, 4),
    length=st.sampled_from([1, 2, 16, 17, 33, 700, 4500]),
    values=st.integers(1, 3),
    columns=st.booleans(),
    seed=st.integers(0, 99),
)
def test_the_first_of_equals_is_found(rows: int, length: int, values: int, columns: bool, seed: int) -> None:
    from turret_cuda.place import place_of

    place = place_of("emulated")
    reduction, storage = CudaReduction(place), CudaStorage(place)
    host = np.random.default_rng(seed).integers(0, values, (rows, length)).astype(np.float32)
    x = storage.from_host(host.T if columns else host)
    got = reduction.argmax(x, axis=0 if columns else 1, keepdims=True)
    np.testing.assert_array_equal(storage.to_host(got).ravel(), host.argmax(1))


def test_sums_have_the_same_bits_at_every_run(reduction: CudaReduction, storage: CudaStorage) -> None:
    for shape, axis in (((2, 9001), 1), ((3001, 3), 0)):
        x = storage.from_host(np.random.default_rng(8).normal(size=shape).astype(np.float32))
        first = storage.to_host(reduction.sum(x, axis=axis))
        for _ in range(2):
            np.testing.assert_array_equal(storage.to_host(reduction.sum(x, axis=axis)), first)


def test_few_blocks_do_the_work_of_many(
    reduction: CudaReduction, storage: CudaStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    host = np.random.default_rng(8).integers(-99, 99, (2000, 40)).astype(np.float32)
    host[77, 5] = host[1990, 5] = 99
    x = storage.from_host(host)
    monkeypatch.setattr("turret_cuda.reduction.MOST_BLOCKS", 2)
    for axis in (0, 1):
        np.testing.assert_array_equal(storage.to_host(reduction.sum(x, axis=axis)), host.sum(axis))
        np.testing.assert_array_equal(storage.to_host(reduction.argmax(x, axis=axis)), host.argmax(axis))
