from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from turret_cuda.indexing import CudaIndexing
from turret_cuda.place import Place, place_of
from turret_cuda.storage import CudaStorage

FLOATS = ("float32", "float64", "float16", "bfloat16")
EVERY = (*FLOATS, "int32", "int64", "uint8", "bool")
NATIVE = {name: np.dtype(name) for name in EVERY if name != "bfloat16"} | {"bfloat16": np.dtype(ml_dtypes.bfloat16)}
UNIT = {"float32": 2.0**-23, "float64": 2.0**-52, "float16": 2.0**-10, "bfloat16": 2.0**-7}


@pytest.fixture
def indexing(place: Place) -> CudaIndexing:
    return CudaIndexing(place)


@pytest.fixture
def storage(place: Place) -> CudaStorage:
    return CudaStorage(place)


def values(shape: tuple[int, ...], dtype: str, seed: int = 4) -> np.ndarray:
    """What the dtype holds exactly; bfloat16 as float32."""
    draw = np.random.default_rng(seed)
    if dtype in FLOATS:
        made = draw.normal(size=shape).astype(NATIVE[dtype])
        return made.astype(np.float32) if dtype == "bfloat16" else made
    return draw.integers(0, 2 if dtype == "bool" else 100, shape).astype(dtype)


def some_ids(shape: int | tuple[int, ...], below: int, seed: int = 6) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, below, shape).astype(np.int32)


@pytest.mark.parametrize("dtype", EVERY)
@pytest.mark.parametrize("rest", [(), (1,), (3,), (2, 4), (16,)])
@pytest.mark.parametrize("ids_shape", [(), (5,), (2, 3)])
def test_rows_are_gathered(
    indexing: CudaIndexing, storage: CudaStorage, dtype: Any, rest: tuple[int, ...], ids_shape: tuple[int, ...]
) -> None:
    table, ids = values((9, *rest), dtype), some_ids(ids_shape, 9)
    got = indexing.gather_rows(storage.from_host(table, dtype=dtype), storage.from_host(np.asarray(ids)))
    assert storage.dtype_of(got) == dtype
    np.testing.assert_array_equal(storage.to_host(got), table[ids])


@pytest.mark.parametrize("dtype", EVERY)
def test_one_element_of_each_row_is_gathered(indexing: CudaIndexing, storage: CudaStorage, dtype: Any) -> None:
    for shape in ((7,), (6, 5), (2, 3, 11)):
        x, ids = values(shape, dtype), np.asarray(some_ids(shape[:-1], shape[-1]))
        got = indexing.gather_last(storage.from_host(x, dtype=dtype), storage.from_host(ids))
        want = np.take_along_axis(x, ids[..., None], -1)[..., 0]
        assert got.shape == want.shape
        np.testing.assert_array_equal(storage.to_host(got), want)


def test_views_are_gathered_from(indexing: CudaIndexing, storage: CudaStorage) -> None:
    import cupy

    host = values((8, 6, 10), "float32")
    x, ids = storage.from_host(host), some_ids((16,), 6)
    on_device = storage.from_host(ids)
    for view, truth in (
        (x.transpose(1, 0, 2), host.transpose(1, 0, 2)),
        (x[1:7, ::2, 1:9:3], host[1:7, ::2, 1:9:3]),
        (cupy.broadcast_to(x[:1], (6, 6, 10)), np.broadcast_to(host[:1], (6, 6, 10))),
        (x[1:, 1:][:, :, 1:], host[1:, 1:][:, :, 1:]),
    ):
        np.testing.assert_array_equal(storage.to_host(indexing.gather_rows(view, on_device[::3])), truth[ids[::3]])
        last = some_ids(truth.shape[:-1], truth.shape[-1])
        want = np.take_along_axis(truth, last[..., None], -1)[..., 0]
        for put in (storage.from_host(last), storage.from_host(last.T.copy()).transpose(1, 0)):
            np.testing.assert_array_equal(storage.to_host(indexing.gather_last(view, put)), want)


@pytest.mark.parametrize("dtype", [*FLOATS, "int32", "int64"])
@pytest.mark.parametrize(
    ("shape", "count"),
    [
        ((9, 5), 1),
        ((9, 5), 20),
        ((9,), 30),
        ((1, 5), 7),
        ((7, 2, 3), 12),
        ((3, 300), 9),
        ((70_000, 2), 300),
        ((5, 2), 700),
    ],
)
def test_rows_add_up_in_order(
    indexing: CudaIndexing, storage: CudaStorage, dtype: Any, shape: tuple[int, ...], count: int
) -> None:
    base, rows, ids = values(shape, dtype), values((count, *shape[1:]), dtype, 9), some_ids(count, shape[0])
    put = [storage.from_host(base, dtype=dtype), storage.from_host(ids), storage.from_host(rows, dtype=dtype)]
    got = indexing.scatter_add_rows(*put)
    want = base.astype(np.float64 if dtype in FLOATS else dtype)
    size = np.abs(want)
    np.add.at(want, ids, rows.astype(want.dtype))
    np.add.at(size, ids, np.abs(rows).astype(want.dtype))
    assert storage.dtype_of(got) == dtype
    accumulated = 2.0**-22 if dtype != "float64" else 2.0**-50
    bound = UNIT[dtype] * np.abs(want) + accumulated * size if dtype in FLOATS else 0
    assert (np.abs(storage.to_host(got) - want) <= bound).all()
    np.testing.assert_array_equal(storage.to_host(put[0]), base)


def test_additions_follow_the_tokens(indexing: CudaIndexing, storage: CudaStorage) -> None:
    """Bit for bit what float32 gives one token after the other, also beyond one tile and one digit of the sort."""
    base, ids = values((600, 3), "float32"), some_ids(900, 600)
    ids[::4] = 77
    rows = values((900, 3), "float32", 2) * np.float32(1e3) ** np.random.default_rng(1).integers(-1, 2, (900, 1))
    rows = rows.astype(np.float32)
    want = base.copy()
    for i, row in zip(ids, rows, strict=True):
        want[i] += row
    put = [storage.from_host(each) for each in (base, ids, rows)]
    for _ in range(2):
        np.testing.assert_array_equal(storage.to_host(indexing.scatter_add_rows(*put)), want)


def test_few_blocks_do_the_work_of_many(
    indexing: CudaIndexing, storage: CudaStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    base, ids, rows = values((300, 40), "float32"), some_ids(1100, 300), values((1100, 40), "float32", 2)
    put = [storage.from_host(each) for each in (base, ids, rows)]
    calls = indexing.scatter_add_rows, indexing.set_rows
    want = [storage.to_host(call(*put)) for call in calls]
    for name in ("indexing", "place"):
        monkeypatch.setattr(f"turret_cuda.{name}.MOST_BLOCKS", 2)
    for call, each in zip(calls, want, strict=True):
        np.testing.assert_array_equal(storage.to_host(call(*put)), each)
    np.testing.assert_array_equal(storage.to_host(indexing.gather_rows(put[0], put[1])), base[ids])


def test_halves_are_rounded_once(indexing: CudaIndexing, storage: CudaStorage) -> None:
    base, ids, rows = np.full((2, 1), 2048.0), np.zeros(64, np.int32), np.ones((64, 1))
    for dtype in ("float16", "bfloat16"):
        put = storage.from_host(base, dtype=dtype), storage.from_host(ids), storage.from_host(rows, dtype=dtype)
        np.testing.assert_array_equal(storage.to_host(indexing.scatter_add_rows(*put)), [[2112.0], [2048.0]])


def test_integers_wrap(indexing: CudaIndexing, storage: CudaStorage) -> None:
    for dtype in ("int32", "int64"):
        info = np.iinfo(dtype)
        base, rows = np.full((1, 2), info.max, dtype), np.full((2, 2), 5, dtype)
        put = storage.from_host(base), storage.from_host(np.zeros(2, np.int32)), storage.from_host(rows)
        np.testing.assert_array_equal(storage.to_host(indexing.scatter_add_rows(*put)), np.full((1, 2), info.min + 9))


@pytest.mark.parametrize("dtype", EVERY)
@pytest.mark.parametrize(("shape", "count"), [((9, 5), 1), ((9, 5), 30), ((9,), 4), ((7, 2, 8), 5), ((300, 3), 290)])
def test_the_last_row_set_stays(
    indexing: CudaIndexing, storage: CudaStorage, dtype: Any, shape: tuple[int, ...], count: int
) -> None:
    base, rows, ids = values(shape, dtype), values((count, *shape[1:]), dtype, 9), some_ids(count, shape[0])
    put = storage.from_host(base, dtype=dtype), storage.from_host(ids), storage.from_host(rows, dtype=dtype)
    want = base.copy()
    for i, row in zip(ids, rows, strict=True):
        want[i] = row
    np.testing.assert_array_equal(storage.to_host(indexing.set_rows(*put)), want)
    np.testing.assert_array_equal(storage.to_host(put[0]), base)


@pytest.mark.parametrize("method", ["scatter_add_rows", "set_rows"])
def test_a_donated_base_is_written_only_where_that_is_safe(
    indexing: CudaIndexing, storage: CudaStorage, method: str
) -> None:
    import cupy

    host, rows, ids = values((6, 14), "float32"), values((9, 7), "float32", 2), some_ids(9, 6)
    write = getattr(indexing, method)

    def want(base: np.ndarray) -> np.ndarray:
        return storage.to_host(write(*(storage.from_host(each) for each in (base, ids, rows))))

    put = storage.from_host(ids), storage.from_host(rows)
    whole = storage.from_host(host[:, :7])
    got = write(whole, *put, donate=True)
    assert got.data.ptr == whole.data.ptr
    np.testing.assert_array_equal(storage.to_host(got), want(host[:, :7]))

    x = storage.from_host(host)
    for view, truth in ((x[:, ::2], host[:, ::2]), (x[:, 3:10], host[:, 3:10])):
        np.testing.assert_array_equal(storage.to_host(write(view, *put, donate=True)), want(truth))
    across = storage.from_host(host[:, :7].T.copy())
    np.testing.assert_array_equal(storage.to_host(write(across.transpose(1, 0), *put, donate=True)), want(host[:, :7]))
    repeated = cupy.broadcast_to(x[:1, :7], (6, 7))
    truth = np.broadcast_to(host[:1, :7], (6, 7))
    np.testing.assert_array_equal(storage.to_host(write(repeated, *put, donate=True)), want(truth))
    np.testing.assert_array_equal(storage.to_host(x), host)


@pytest.mark.parametrize("method", ["scatter_add_rows", "set_rows"])
def test_rows_and_ids_may_be_views(indexing: CudaIndexing, storage: CudaStorage, method: str) -> None:
    import cupy

    base, rows, ids = values((6, 8), "float32"), values((8, 5), "float32", 2), some_ids(10, 6)
    write, put_base, put_ids = getattr(indexing, method), storage.from_host(base), storage.from_host(ids)[::2]
    put = storage.from_host(rows)
    for view, truth in (
        (put.transpose(1, 0), rows.T),
        (cupy.broadcast_to(put[:, :1].transpose(1, 0), (5, 8)), np.broadcast_to(rows[:, :1].T, (5, 8))),
    ):
        want = write(put_base, storage.from_host(ids[::2].copy()), storage.from_host(truth))
        np.testing.assert_array_equal(storage.to_host(write(put_base, put_ids, view)), storage.to_host(want))


def test_nothing_to_do_is_done(indexing: CudaIndexing, storage: CudaStorage) -> None:
    none = storage.from_host(np.zeros(0, np.int32))
    base = storage.from_host(values((4, 3), "float32"))
    rows = storage.from_host(np.zeros((0, 3), np.float32))
    for method in (indexing.scatter_add_rows, indexing.set_rows):
        got = method(base, none, rows)
        assert got.data.ptr != base.data.ptr
        np.testing.assert_array_equal(storage.to_host(got), storage.to_host(base))
        empty = storage.from_host(np.zeros((4, 0), np.float32))
        ids = storage.from_host(np.zeros(2, np.int32))
        assert method(empty, ids, storage.from_host(np.zeros((2, 0), np.float32))).shape == (4, 0)
    assert indexing.gather_rows(base, none).shape == (0, 3)
    assert indexing.gather_rows(empty, ids).shape == (2, 0)
    assert indexing.gather_last(storage.from_host(np.zeros((0, 3), np.float32)), none).shape == (0,)


@settings(deadline=None, max_examples=25)
@given(count=st.integers(1, 1500), below=st.sampled_from([1, 2, 255, 256, 257, 65_537]), seed=st.integers(0, 99))
def test_tokens_are_sorted_by_id_and_keep_their_order(count: int, below: int, seed: int) -> None:
    place = place_of("emulated")
    indexing, storage = CudaIndexing(place), CudaStorage(place)
    ids = some_ids(count, below, seed)
    ids[0] = below - 1
    found, order = indexing._sorted(storage.from_host(ids), below)
    want = np.argsort(ids, kind="stable")
    np.testing.assert_array_equal(storage.to_host(order), want)
    np.testing.assert_array_equal(storage.to_host(found), ids[want])
