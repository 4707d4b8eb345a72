from __future__ import annotations

import math
import weakref
from typing import Any

import cupy
import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

pytestmark = pytest.mark.usefixtures("device")
POOL = cupy.cuda.MemoryPool()


def both(shape: tuple[int, ...]) -> tuple[Any, cupy.ndarray]:
    """An array of NumPy and one of the stand-in with the same layout."""
    host = np.empty(shape, np.float32)
    return host, cupy.ndarray(shape, np.float32, POOL.malloc(host.nbytes))


def assert_same_layout(host: Any, start: int, got: cupy.ndarray, base: int) -> None:
    assert (got.shape, got.size, got.ndim, got.nbytes) == (host.shape, host.size, host.ndim, host.nbytes)
    assert got.flags.c_contiguous == host.flags.c_contiguous
    if host.size:
        moved = [(a, b) for a, b, size in zip(got.strides, host.strides, host.shape, strict=True) if size > 1]
        assert all(a == b for a, b in moved)
        assert got.data.ptr - base == host.__array_interface__["data"][0] - start


@st.composite
def indexed(draw: st.DrawFn) -> tuple[tuple[int, ...], tuple[Any, ...]]:
    shape = draw(st.lists(st.integers(1, 5), min_size=1, max_size=4).map(tuple))
    entries: list[Any] = []
    for size in shape[: draw(st.integers(0, len(shape)))]:
        entries.append(draw(st.integers(-size, size - 1) | st.slices(size)))
    entries[draw(st.integers(0, len(entries))) :] += [...] if draw(st.booleans()) else []
    for _ in range(draw(st.integers(0, 2))):
        entries.insert(draw(st.integers(0, len(entries))), None)
    return shape, tuple(entries)


@given(indexed())
def test_an_index_gives_the_view_that_numpy_gives(case: tuple[tuple[int, ...], tuple[Any, ...]]) -> None:
    shape, index = case
    host, array = both(shape)
    want = host[index]
    if isinstance(want, np.generic):
        want = host[(*index, ...)]
    assert_same_layout(want, host.ctypes.data, array[index], array.data.ptr)


@given(st.lists(st.integers(1, 4), min_size=1, max_size=4).map(tuple), st.data())
def test_transposing_and_broadcasting_give_the_views_that_numpy_gives(
    shape: tuple[int, ...], data: st.DataObject
) -> None:
    host, array = both(shape)
    order = tuple(data.draw(st.permutations(range(len(shape)))))
    for got in (array.transpose(order), array.transpose(*order)):
        assert_same_layout(host.transpose(order), host.ctypes.data, got, array.data.ptr)
    assert_same_layout(host.T, host.ctypes.data, array.transpose(), array.data.ptr)
    assert_same_layout(host.swapaxes(0, -1), host.ctypes.data, array.swapaxes(0, -1), array.data.ptr)
    wide = (3, *(3 if size == 1 else size for size in shape))
    got = cupy.broadcast_to(array, wide)
    assert_same_layout(np.broadcast_to(host, wide), host.ctypes.data, got, array.data.ptr)


def test_reshaping_a_contiguous_array_is_a_view() -> None:
    _, array = both((2, 6))
    for got in (array.reshape(3, 4), array.reshape((3, 4)), array.reshape(3, -1), array.reshape([3, 4])):
        assert (got.shape, got.strides, got.data.ptr) == ((3, 4), (16, 4), array.data.ptr)
    assert array.reshape(-1).shape == (12,)
    assert array[:1, :1].reshape(()).shape == ()


def test_a_reshape_that_cupy_might_copy_is_refused() -> None:
    _, array = both((2, 6))
    with pytest.raises(NotImplementedError, match=r"\(6, 2\) and strides \(4, 24\)"):
        array.transpose().reshape(12)
    for shape in ((5,), (5, -1), (-1, -1), (-2, -6)):
        with pytest.raises(ValueError, match="cannot reshape array of size 12"):
            array.reshape(shape)


@pytest.mark.parametrize(
    ("index", "error"), [((0, 0, 0), IndexError), (2, IndexError), ((..., ...), IndexError), ([0], TypeError)]
)
def test_an_index_outside_the_array_or_not_basic_is_refused(index: Any, error: type[Exception]) -> None:
    with pytest.raises(error):
        both((2, 6))[1][index]


def test_bad_axes_and_shapes_are_refused() -> None:
    _, array = both((2, 6))
    for axes in ((0,), (0, 0), (0, 2)):
        with pytest.raises(ValueError, match="ax"):
            array.transpose(axes)
    with pytest.raises(ValueError, match="Axis out of range"):
        array.swapaxes(0, 2)
    for shape in ((6,), (3, 6)):
        with pytest.raises(ValueError):
            cupy.broadcast_to(array, shape)
    with pytest.raises(ValueError, match="Negative"):
        cupy.ndarray((-1,), np.float32, array.data)


def test_values_stay_on_the_device() -> None:
    _, array = both((1,))
    with pytest.raises(TypeError, match="Implicit conversion"):
        np.asarray(array)
    for look in (bool, int, float, list, hash, lambda a: a == a, lambda a: 1 in a):
        with pytest.raises(TypeError):
            look(array)
    with pytest.raises(TypeError):
        np.ones(1, np.float32) + array
    assert "shape=(1,)" in repr(array) and len(array) == 1


def test_nothing_else_of_cupy_is_there() -> None:
    _, array = both((1,))
    assert not isinstance(array, np.ndarray)
    for owner, name in (
        (cupy, "sum"),
        (cupy, "empty"),
        (cupy, "RawKernel"),
        (cupy.cuda, "alloc"),
        (array, "get"),
        (array, "T"),
    ):
        with pytest.raises(AttributeError):
            getattr(owner, name)
    with pytest.raises(TypeError):
        array + array  # type: ignore[operator]
    assert cupy.EMULATED and cupy.__version__ == "0.0+emulated"


def test_views_keep_their_memory() -> None:
    pool = cupy.cuda.MemoryPool()
    array = cupy.ndarray((4, 4), np.float64, pool.malloc(128))
    view = cupy.broadcast_to(array[1:, None, 2].transpose(), (5, 1, 3))
    gone = weakref.ref(array)
    del array
    assert gone() is None and pool.used_bytes() == 512
    del view
    assert pool.used_bytes() == 0


def test_an_array_of_any_type_of_the_plugin_says_its_layout() -> None:
    array = cupy.ndarray((3, 5), ml_dtypes.bfloat16, POOL.malloc(30))
    assert (array.itemsize, array.strides, array.nbytes, array.dtype.name) == (2, (10, 2), 30, "bfloat16")
    turned = cupy.ndarray((3, 5), np.int64, POOL.malloc(120), order="F")
    assert turned.strides == (8, 24) and not turned.flags.c_contiguous
    stepped = cupy.ndarray((2, 2), np.float32, POOL.malloc(64), strides=(16, 8))
    assert stepped.strides == (16, 8) and not stepped.flags.c_contiguous
    empty = cupy.ndarray((0, 3), np.float32, POOL.malloc(0))
    assert empty.data.ptr == 0 and empty.flags.c_contiguous and empty[:, 1:].data.ptr == 0
    assert cupy.ndarray((2, 3)).nbytes == 8 * math.prod((2, 3))
    assert array.device.id == 0
