from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from turret.spi import DTypeError, Memory
from turret.spi.array_api import Hooks, required_from

BIG = 1 << 16  # large enough that a library would rather alias than copy


def dtypes(space: Any) -> list[str]:
    return sorted(space.storage.device().dtypes - {"bfloat16"})


def test_from_host_is_a_private_copy(space: Any) -> None:
    host = np.zeros(BIG, np.float32)
    array = space.put(host)
    host[:] = 5
    assert not space.get(array).any()


def test_to_host_is_owned_writable_and_in_c_order(space: Any) -> None:
    array = space.layout.transpose(space.put(np.zeros((256, 256), np.float32)), (1, 0))
    host = space.get(array)
    assert type(host) is np.ndarray
    assert host.flags.writeable and host.flags.c_contiguous and host.flags.owndata
    host[:] = 5
    assert not space.get(array).any()


def test_every_dtype_of_the_device_makes_the_round_trip(space: Any) -> None:
    assert {"float32", "int32", "bool", "uint8"} <= space.storage.device().dtypes
    for dtype in dtypes(space):
        for host in (np.array([[0, 1, 3]]).astype(dtype), np.zeros((0, 2), dtype), np.ones((), dtype)):
            array = space.put(host)
            assert space.storage.dtype_of(array) == dtype
            space.same(array, host)


def test_the_layout_of_the_host_array_does_not_matter(space: Any) -> None:
    host = np.arange(24, dtype=np.float32).reshape(4, 6)
    for view in (host.T, host[::2, ::-1], host.astype(">f4"), np.asfortranarray(host)):
        space.same(space.put(view), view.astype(np.float32))


def test_from_host_casts_without_a_warning(space: Any) -> None:
    space.same(space.put(np.array([1e300, -2.5]), "float32"), np.array([np.inf, -2.5], np.float32))
    space.same(space.put(np.array([2.9, -2.9]), "int32"), np.array([2, -2], np.int32))
    space.get(space.put(np.array([np.nan]), "int32"))


def test_bfloat16_arrives_widened(space: Any) -> None:
    if "bfloat16" not in space.storage.device().dtypes:
        with pytest.raises(DTypeError, match="bfloat16"):
            space.put(np.ones(1, np.float32), "bfloat16")
        return
    import ml_dtypes

    host = np.array([1.0, 3.14159, 1e30], ml_dtypes.bfloat16)
    for array in (space.put(host), space.put(host.astype(np.float32), "bfloat16")):
        assert space.storage.dtype_of(array) == "bfloat16"
        space.same(array, host.astype(np.float32))


@pytest.mark.parametrize("foreign", ["uint16", "complex64", "int8"])
def test_a_dtype_nobody_has_is_named_with_what_there_is(space: Any, foreign: str) -> None:
    with pytest.raises(DTypeError, match=rf"{foreign}.*it has float32, int32"):
        space.put(np.zeros(2, foreign))


def test_a_dtype_the_device_lacks_is_an_error_and_never_narrowed(space: Any) -> None:
    missing = {"float64", "int64", "float16", "bfloat16"} - space.storage.device().dtypes
    assert (
        missing == {"numpy": {"bfloat16"}, "strict": {"float16", "bfloat16"}, "jax": {"float64", "int64"}}[space.name]
    )
    ones = np.ones(2, np.float32)
    x = space.put(ones)
    for dtype in missing:
        with pytest.raises(DTypeError, match=dtype):
            space.storage.full((2,), 1, dtype=dtype)
        with pytest.raises(DTypeError, match=dtype):
            space.storage.cast(x, dtype)
        with pytest.raises(DTypeError, match=dtype):
            space.put(ones, dtype)


def test_full_holds_its_value_in_every_dtype(space: Any) -> None:
    for dtype in dtypes(space):
        for shape in ((2, 3), (0,), ()):
            space.same(space.storage.full(shape, 1.0, dtype=dtype), np.full(shape, 1, dtype))
    space.same(space.storage.full((2,), -np.inf, dtype="float32"), np.full(2, -np.inf, np.float32))


def address(space: Any, array: Any) -> int:
    if space.name == "jax":
        return int(array.unsafe_buffer_pointer())
    return int(np.asarray(array if space.name == "numpy" else array._array).__array_interface__["data"][0])


def test_full_and_copy_are_fresh_buffers(space: Any) -> None:
    first, second = (space.storage.full((BIG,), 0, dtype="float32") for _ in range(2))
    third = space.storage.copy(first)
    assert len({address(space, a) for a in (first, second, third)}) == 3
    space.same(third, np.zeros(BIG, np.float32))


def test_arange_counts_in_int32(space: Any) -> None:
    for stop in (0, 1, 65):
        space.same(space.storage.arange(stop), np.arange(stop, dtype=np.int32))


def test_cast_truncates_and_counts_nonzero_as_true(space: Any) -> None:
    x = space.put(np.array([-2.7, -0.0, 0.5, 3.9], np.float32))
    space.same(space.storage.cast(x, "int32"), np.array([-2, 0, 0, 3], np.int32))
    space.same(space.storage.cast(x, "bool"), np.array([True, False, True, True]))
    space.same(space.storage.cast(x, "float32"), np.array([-2.7, -0.0, 0.5, 3.9], np.float32))
    space.same(space.storage.cast(space.put(np.array([True, False])), "float32"), np.array([1, 0], np.float32))
    space.same(space.storage.cast(space.put(np.array([0, 200], np.uint8)), "int32"), np.array([0, 200], np.int32))
    space.get(space.storage.cast(space.put(np.array([np.nan, 1e30], np.float32)), "int32"))


def test_synchronize_takes_any_number_of_arrays(space: Any) -> None:
    arrays = [space.put(np.zeros(s, np.float32)) for s in ((), (3, 2), (0, 2))]
    assert space.storage.synchronize() is None
    assert space.storage.synchronize(*arrays) is None


def test_the_device_says_what_it_was_told() -> None:
    storage = required_from(np, name="mine").storage
    assert (storage.device().name, storage.device().kind, storage.memory()) == ("mine", "default", None)
    assert required_from(np).storage.device().name == "numpy"
    told = Memory(used_bytes=1, peak_bytes=2, total_bytes=3)
    onto = required_from(np, device="cpu", hooks=Hooks(memory=lambda: told))
    assert onto.storage.device().kind == "cpu" and onto.storage.memory() == told
    assert onto.layout.pad(onto.storage.full((1,), 2, dtype="float32"), [(1, 0)]).tolist() == [0, 2]


def test_subnormals_are_reported_as_the_device_treats_them(space: Any) -> None:
    small = space.elementwise.multiply(
        space.put(np.array([1e-30], np.float32)), space.put(np.array([1e-10], np.float32))
    )
    assert space.storage.device().flushes_subnormals == (space.get(small)[0] == 0)


def test_hooks_take_the_place_of_the_namespaces_own_ways() -> None:
    waited: list[Any] = []
    fetched: list[Any] = []

    def fetch(x: Any) -> Any:
        fetched.append(x)
        return x

    storage = required_from(np, hooks=Hooks(to_host=fetch, synchronize=lambda *xs: waited.extend(xs))).storage
    x = storage.full((2,), 1, dtype="float32")
    storage.synchronize()
    storage.synchronize(x)
    assert len(waited) == 1 and waited[0] is x
    fetched.clear()
    assert storage.to_host(x) is not x and fetched[0] is x
