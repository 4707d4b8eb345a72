"""Matrix products against float64 formulas, with operands wherever they lie in larger arrays."""

from __future__ import annotations

import math
from typing import Any

import cupy
import numpy as np
import numpy.typing as npt
import pytest
from cupy import emulated
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from turret.spi import DType
from turret_cuda import cublas
from turret_cuda.matmul import CudaMatmul
from turret_cuda.place import Place
from turret_cuda.storage import CudaStorage

X = npt.NDArray[Any]
UNITS: dict[DType, float] = {"float32": 2.0**-24, "float64": 2.0**-53, "float16": 2.0**-11, "bfloat16": 2.0**-8}
LAYOUTS = ("whole", "transposed", "rows of a slice", "columns of a slice", "every other", "backwards")
REPEATED = {"one matrix for all": None, "one row for all": -2, "one column for all": -1}
FAR = 1e4  # fills what lies around the operands: a product that reads it cannot go unnoticed


def lying(storage: CudaStorage, x: X, dtype: DType, layout: str) -> Any:
    """x on the device as a view of a larger array."""
    *lead, height, width = x.shape
    if layout == "transposed":
        return _swapped(storage.from_host(np.swapaxes(x, -1, -2), dtype=dtype))
    if layout == "rows of a slice":
        around = np.full((*lead, height, width + 3), FAR)
        around[..., 1:-2] = x
        return storage.from_host(around, dtype=dtype)[..., 1 : 1 + width]
    if layout == "columns of a slice":
        around = np.full((*lead, width, height + 3), FAR)
        around[..., 1:-2] = np.swapaxes(x, -1, -2)
        return _swapped(storage.from_host(around, dtype=dtype)[..., 1 : 1 + height])
    if layout == "every other":
        around = np.full((*lead, height, 2 * width), FAR)
        around[..., ::2] = x
        return storage.from_host(around, dtype=dtype)[..., ::2]
    if layout == "backwards":
        return storage.from_host(np.ascontiguousarray(x[..., ::-1, :]), dtype=dtype)[..., ::-1, :]
    return storage.from_host(x, dtype=dtype)


def _swapped(x: Any) -> Any:
    return x.transpose((*range(x.ndim - 2), x.ndim - 1, x.ndim - 2))


def close(got: X, a: X, b: X, dtype: DType) -> None:
    """Within the rounding of the sum, in float32 at least, and of the result."""
    want, size = a @ b, np.abs(a) @ np.abs(b)
    summed = UNITS["float64" if dtype == "float64" else "float32"]
    allowed = (a.shape[-1] + 2) * summed * size + UNITS[dtype] * np.abs(want) + 1e-7 * (dtype == "float16")
    assert got.shape == want.shape
    assert (np.abs(got.astype(np.float64) - want) <= allowed).all()


def rounded(storage: CudaStorage, x: X, dtype: DType) -> X:
    """The values that x has on the device."""
    return storage.to_host(storage.from_host(x, dtype=dtype)).astype(np.float64)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    lead=st.lists(st.integers(0, 3), max_size=2),
    sizes=st.tuples(*[st.integers(0, 9)] * 3),
    layouts=st.tuples(*[st.sampled_from((*LAYOUTS, *REPEATED))] * 2),
    flags=st.tuples(st.booleans(), st.booleans()),
    dtype=st.sampled_from(sorted(UNITS)),
    seed=st.integers(0, 9),
)
def test_operands_are_read_wherever_they_lie(
    place: Place,
    lead: list[int],
    sizes: tuple[int, int, int],
    layouts: tuple[str, str],
    flags: tuple[bool, bool],
    dtype: DType,
    seed: int,
) -> None:
    storage, draw, (m, n, k) = CudaStorage(place), np.random.default_rng(seed), sizes
    shapes = (k, m) if flags[0] else (m, k), (n, k) if flags[1] else (k, n)
    hosts, arrays = [], []
    for shape, layout in zip(shapes, layouts, strict=True):
        if layout in REPEATED:
            small, axis = list(shape), REPEATED[layout]
            if axis is not None:
                small[axis] = 1
            one = rounded(storage, draw.standard_normal(small), dtype)
            hosts.append(np.broadcast_to(one, (*lead, *shape)))
            arrays.append(cupy.broadcast_to(storage.from_host(one, dtype=dtype), (*lead, *shape)))
        else:
            hosts.append(rounded(storage, draw.standard_normal((*lead, *shape)), dtype))
            arrays.append(lying(storage, hosts[-1], dtype, layout))
    got = CudaMatmul(place).matmul(*arrays, transpose_a=flags[0], transpose_b=flags[1])
    assert storage.dtype_of(got) == dtype
    a, b = (np.swapaxes(x, -1, -2) if flag else x for x, flag in zip(hosts, flags, strict=True))
    close(storage.to_host(got), a, b, dtype)


@pytest.mark.parametrize("dtype", sorted(UNITS))
@pytest.mark.parametrize("layout", ["whole", "transposed", "rows of a slice", "columns of a slice"])
def test_what_cublas_can_read_is_not_copied(place: Place, layout: str, dtype: DType) -> None:
    storage, draw = CudaStorage(place), np.random.default_rng(1)
    a = lying(storage, draw.standard_normal((5, 7)), dtype, layout)
    b = lying(storage, draw.standard_normal((7, 3)), dtype, layout)
    place.wait("a test")
    before = dict(emulated.launches)
    CudaMatmul(place).matmul(a, b)
    place.wait("a test")
    assert dict(emulated.launches) == before


def test_heads_in_one_array_of_tokens_are_not_copied_where_one_step_leads_to_each(place: Place) -> None:
    storage, draw = CudaStorage(place), np.random.default_rng(2)
    x = draw.standard_normal((6, 4, 5)).astype(np.float32)  # tokens, heads, size
    heads = storage.from_host(x).transpose((1, 0, 2))
    place.wait("a test")
    before = dict(emulated.launches)
    got = CudaMatmul(place).matmul(heads, heads, transpose_b=True)
    place.wait("a test")
    assert dict(emulated.launches) == before
    wide = x.transpose((1, 0, 2)).astype(np.float64)
    close(storage.to_host(got), wide, wide.transpose((0, 2, 1)), "float32")


@pytest.mark.parametrize("dtype", sorted(UNITS))
def test_an_empty_contraction_gives_zeros(place: Place, dtype: DType) -> None:
    storage = CudaStorage(place)
    a, b = (storage.full(shape, 1.0, dtype=dtype) for shape in ((2, 3, 0), (2, 0, 4)))
    got = storage.to_host(CudaMatmul(place).matmul(a, b))
    assert got.shape == (2, 3, 4)
    assert not got.any()


@pytest.mark.parametrize("shapes", [((0, 3), (3, 4)), ((4, 3), (3, 0)), ((0, 4, 3), (0, 3, 4))])
def test_results_without_elements_need_no_product(place: Place, shapes: tuple[tuple[int, ...], ...]) -> None:
    storage = CudaStorage(place)
    a, b = (storage.full(shape, 1.0, dtype="float32") for shape in shapes)
    assert CudaMatmul(place).matmul(a, b).shape == (*shapes[0][:-1], shapes[1][-1])


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_halves_are_added_up_in_float32(place: Place, dtype: DType) -> None:
    storage = CudaStorage(place)
    got = CudaMatmul(place).matmul(*(storage.full(shape, 1.0, dtype=dtype) for shape in ((1, 4096), (4096, 1))))
    assert storage.to_host(got).item() == 4096.0


def test_more_matrices_than_one_call_takes(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cublas, "MOST_MATRICES", 2)
    storage, draw = CudaStorage(place), np.random.default_rng(3)
    a, b = draw.standard_normal((5, 2, 3)), draw.standard_normal((5, 3, 2))
    close(storage.to_host(CudaMatmul(place).matmul(storage.from_host(a), storage.from_host(b))), a, b, "float64")


@pytest.mark.parametrize(
    ("asked", "dtype", "word"),
    [
        ("", "float32", "float32"),
        ("0", "float32", "float32"),
        ("1", "float32", "tf32"),
        ("1", "float64", "float64"),
        ("1", "float16", "float32"),
        ("0", "bfloat16", "float32"),
    ],
)
def test_accumulation_is_stated_as_it_is(
    place: Place, monkeypatch: pytest.MonkeyPatch, asked: str, dtype: DType, word: str
) -> None:
    monkeypatch.setenv("CUPY_TF32", asked)
    assert CudaMatmul(place).accumulation(dtype) == word


@pytest.mark.parametrize("where", [(0, 0), (4, 6)])
def test_nan_reaches_its_row_and_nothing_else(place: Place, where: tuple[int, int]) -> None:
    storage, draw = CudaStorage(place), np.random.default_rng(4)
    a, b = draw.standard_normal((5, 7)), draw.standard_normal((7, 3))
    a[where] = math.nan
    got = storage.to_host(CudaMatmul(place).matmul(storage.from_host(a), storage.from_host(b)))
    assert np.isnan(got[where[0]]).all()
    assert np.isfinite(np.delete(got, where[0], axis=0)).all()
