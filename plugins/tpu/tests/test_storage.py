"""Dtypes that the device lacks, values that a tracer does not have, and memory that must not be shared."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import turret
from turret.registry import open_backend
from turret.spi import BackendMismatch, CaptureError, DTypeError, OutOfMemory
from turret.tensor import ops
from turret_tpu import programs
from turret_tpu.backend import TpuBackend
from turret_tpu.library import jax


@pytest.mark.parametrize("dtype", ["float64", "int64", "complex64", "float8_e4m3fn"])
def test_a_dtype_the_device_lacks_is_refused_not_narrowed(backend: TpuBackend, dtype: Any) -> None:
    storage = backend.capabilities().required.storage
    x = storage.full((2,), 1.0, dtype="float32")
    calls: list[Callable[[], Any]] = [
        lambda: storage.from_host(np.ones(2, np.float32), dtype=dtype),
        lambda: storage.full((2,), 1.0, dtype=dtype),
        lambda: storage.cast(x, dtype),
    ]
    for call in calls:
        with pytest.raises(DTypeError, match=rf"tpu has no {dtype}; wanted one of float32, .*; cast on the host first"):
            call()


@pytest.mark.parametrize("dtype", [np.float64, np.int64, np.int16])
def test_a_host_array_keeps_its_dtype_or_is_refused(backend: TpuBackend, dtype: Any) -> None:
    with pytest.raises(DTypeError, match=f"tpu has no {np.dtype(dtype).name}"):
        backend.capabilities().required.storage.from_host(np.ones(2, dtype))


def test_an_array_of_another_backend_is_refused() -> None:
    ours = turret.tensor(np.ones(3, np.float32), backend=open_backend("tpu:cpu"))
    other = turret.tensor(np.ones(3, np.float32), backend=open_backend("cpu"))
    with pytest.raises(BackendMismatch):
        ops.add(ours, other)


def test_arrays_are_committed_whatever_the_default_device(backend: TpuBackend) -> None:
    required = backend.capabilities().required
    storage = required.storage
    made = [storage.full((3,), 1.0, dtype="float32"), storage.arange(3), storage.from_host(np.ones(3, np.float32))]
    for x in (*made, storage.copy(made[0]), required.elementwise.add(made[0], 1.0)):
        assert x.committed
        assert x.devices() == {jax.devices("cpu")[0]}


def test_within_a_trace_arrays_are_made_and_none_is_read(backend: TpuBackend) -> None:
    storage = backend.capabilities().required.storage

    def made(x: jax.Array) -> tuple[jax.Array, ...]:
        with pytest.raises(CaptureError, match="to_host reads an array of shape"):
            storage.to_host(x)
        constant = storage.from_host(np.arange(3, dtype=np.float32))
        return x + constant, storage.full((2,), 2.0, dtype="bfloat16"), storage.arange(4), storage.copy(x)

    total, full, counted, copied = jax.jit(made)(storage.full((3,), 1.0, dtype="float32"))
    assert storage.to_host(total).tolist() == [1, 2, 3]
    assert storage.to_host(full).tolist() == [2, 2]
    assert (storage.dtype_of(full), storage.dtype_of(counted)) == ("bfloat16", "int32")
    assert storage.to_host(copied).tolist() == [1, 1, 1]


def test_host_and_device_share_no_memory_either_way(backend: TpuBackend) -> None:
    storage = backend.capabilities().required.storage
    host = np.zeros((256, 256), np.float32)
    x = storage.from_host(host)
    host[:] = 1
    first = storage.to_host(x)
    first[:] = 2
    assert not storage.to_host(x).any()


def test_no_room_is_out_of_memory(backend: TpuBackend) -> None:
    storage = backend.capabilities().required.storage
    with pytest.raises(OutOfMemory, match="tpu:cpu has no room"):
        storage.synchronize(storage.full((1 << 44,), 1.0, dtype="float32"))


def test_subnormals_are_what_the_device_says(backend: TpuBackend) -> None:
    required = backend.capabilities().required
    small, smaller = (required.storage.full((64,), value, dtype="float32") for value in (1e-30, 1e-10))
    flushed = not required.storage.to_host(required.elementwise.multiply(small, smaller)).any()
    assert required.storage.device().flushes_subnormals == flushed


@pytest.mark.parametrize("length", [600, 3000])  # compiled quickly, and thoroughly
def test_a_nan_is_the_maximum_of_a_long_row(backend: TpuBackend, length: int) -> None:
    required = backend.capabilities().required
    host = np.zeros((3, length), np.float32)
    host[1, length // 2] = np.nan
    got = required.storage.to_host(required.reduction.max(required.storage.from_host(host), axis=1))
    assert np.isnan(got).tolist() == [False, True, False]


def test_programs_of_single_operations_are_bounded_and_those_in_use_stay(backend: TpuBackend) -> None:
    required = backend.capabilities().required
    often = required.storage.from_host(np.ones((50, 50), np.float32))
    quick, thorough = programs._quick, programs._thorough
    required.elementwise.exp(often)
    misses = thorough.cache_info().misses
    for n in range(1, 12):
        x = required.storage.from_host(np.ones(n, np.float32))
        assert required.storage.to_host(required.elementwise.add(x, float(n))).tolist() == [1.0 + n] * n
        required.elementwise.exp(often)
    assert thorough.cache_info().misses == misses
    assert thorough.cache_info().maxsize == programs.MOST
    assert quick.cache_info().maxsize == programs.MOST_QUICK
    assert quick.cache_info().currsize >= 11
    kept = {name: weakref.ref(thorough(Probe(), name)) for name in range(3)}
    for _ in range(programs.MOST):
        thorough(Probe(), object())
    gc.collect()
    assert [each() for each in kept.values()] == [None] * 3


class Probe(programs.Program):
    """A program that nobody runs."""

    def __init__(self) -> None:
        super().__init__(lambda x: x, {})
