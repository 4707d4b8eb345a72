from __future__ import annotations

import gc
import weakref
from typing import Any

import cupy
import numpy as np
import pytest
from cupy.cuda import MemoryPool, Stream
from cupy.cuda.compiler import CompileException
from cupy.cuda.runtime import CUDARuntimeError
from cupy_backends.cuda.api.driver import CUDADriverError

pytestmark = pytest.mark.usefixtures("device")

SOURCE = """
struct Pair { float* to; long long by; };

extern "C" __global__ void scale(float* x, long long n, double by) {
    long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x;
    if (i < n) x[i] *= (float)by;
}
extern "C" __global__ void kinds(double* out, const float* null, bool yes, float f, int i, unsigned long long big) {
    if (threadIdx.x == 0) { out[0] = null == nullptr; out[1] = yes; out[2] = f; out[3] = i; out[4] = big >> 32; }
}
extern "C" __global__ void by_value(Pair pair) { pair.to[threadIdx.x] = pair.by + threadIdx.x; }
extern "C" __global__ void outside(float* x, long long at) { if (threadIdx.x == 0) x[at] = 1; }
extern "C" __global__ void racing(int* x) { x[0] = threadIdx.x; }
extern "C" __global__ void through_table(float** table) { table[threadIdx.x][0] = threadIdx.x + 5; }
extern "C" __global__ void racing_through_table(float** table) { table[0][3] = threadIdx.x; }
extern "C" __global__ void uninitialised(float* x) {
    __shared__ float kept[32];
    x[threadIdx.x] = kept[threadIdx.x];
}
extern "C" __global__ void reversed(float* x) {
    __shared__ float kept[64];
    kept[threadIdx.x] = x[threadIdx.x];
    __syncthreads();
    x[threadIdx.x] = kept[blockDim.x - 1 - threadIdx.x];
}
extern "C" __global__ void defined(int* x) { x[0] = VALUE; }
extern "C" __global__ void dynamic(int* x) {
    extern __shared__ int kept[];
    kept[threadIdx.x] = threadIdx.x;
    __syncthreads();
    x[threadIdx.x] = kept[threadIdx.x ^ 1];
}
"""
MODULE = cupy.RawModule(code=SOURCE, options=("-std=c++17", "-DVALUE=42"))


class Device:
    """Arrays on the device and kernels over them, on the current stream."""

    def __init__(self, pool: MemoryPool, stream: Stream) -> None:
        self.pool = pool
        self.stream = stream

    def array(self, values: Any) -> cupy.ndarray:
        host = np.ascontiguousarray(values)
        made = cupy.ndarray(host.shape, host.dtype, self.pool.malloc(host.nbytes))
        made.data.copy_from_host_async(host.ctypes.data, host.nbytes, self.stream)
        return made

    def values(self, array: cupy.ndarray) -> Any:
        out = np.empty(array.shape, array.dtype)
        array.data.copy_to_host_async(out.ctypes.data, out.nbytes, self.stream)
        self.stream.synchronize()
        return out

    def run(self, name: str, *arguments: object, threads: int = 32) -> None:
        MODULE.get_function(name).kernel((1,), (threads,), arguments)


@pytest.fixture
def on(pool: MemoryPool, stream: Stream) -> Device:
    return Device(pool, stream)


@pytest.mark.parametrize("order", ["forward", "reverse", "random", "all"])
def test_a_kernel_computes(on: Device, order: str) -> None:
    cupy.emulated.settings.order = order
    x = on.array(np.arange(100, dtype=np.float32))
    before = cupy.emulated.launches["scale"]
    MODULE.get_function("scale").kernel((4,), (32,), (x, 100, 0.5), 0, on.stream)
    assert (on.values(x) == np.arange(100) / 2).all()
    assert cupy.emulated.launches["scale"] == before + 1
    part = on.array(np.arange(64, dtype=np.float32))
    on.run("reversed", part, threads=64)
    assert (on.values(part) == np.arange(64)[::-1]).all()


def test_arguments_arrive_as_cupy_sends_them(on: Device) -> None:
    out = on.array(np.zeros(5))
    on.run("kinds", out, None, True, np.float32(2.5), np.int32(-3), 7 << 32)
    assert on.values(out).tolist() == [1, 1, 2.5, -3, 7]
    on.run("kinds", out.data, out.data + 8, False, np.array(1.5, np.float32), np.array([4], np.int32), 1 << 63)
    assert on.values(out).tolist() == [0, 0, 1.5, 4, 1 << 31]
    on.run("kinds", out.data.ptr, None, np.bool_(True), np.float32(0), np.int32(0), np.uint64(1 << 32))
    assert on.values(out).tolist() == [1, 1, 0, 0, 1]


def test_a_struct_arrives_by_value_as_it_was_at_the_call(on: Device) -> None:
    out = on.array(np.zeros(32, np.float32))
    pair = np.zeros((), np.dtype([("to", np.uint64), ("by", np.int64)]))
    pair["to"], pair["by"] = out.data.ptr, 3
    on.run("by_value", pair)
    pair["by"] = 99
    assert (on.values(out) == np.arange(32) + 3).all()


@pytest.mark.parametrize(
    "arguments",
    [
        (1,),
        (None, 1, 1),
        (None, 1.0, 1.0),
        (None, np.int32(1), 1.0),
        (None, 1, np.float32(1)),
        (1.0, 1, 1.0),
        (None, None, 1.0),
        (np.zeros(3, np.float32), 1, 1.0),
        (None, "n", 1.0),
        (None, 1, 1.0, 1),
    ],
)
def test_arguments_that_are_not_the_parameters_are_refused(on: Device, arguments: tuple[object, ...]) -> None:
    with pytest.raises(TypeError):
        on.run("scale", *arguments)


def test_an_integer_beyond_64_bits_is_refused(on: Device) -> None:
    for value in (1 << 64, -(1 << 63) - 1):
        with pytest.raises(OverflowError, match="64 bits"):
            on.run("scale", None, value, 1.0)


def test_options_reach_the_compiler(on: Device) -> None:
    out = on.array(np.zeros(1, np.int32))
    on.run("defined", out)
    assert on.values(out)[0] == 42
    with pytest.raises(CompileException, match="unrecognized option"):
        cupy.RawModule(code=SOURCE, options=("--nonsense",)).get_function("scale").kernel  # noqa: B018
    with pytest.raises(TypeError, match="tuple"):
        cupy.RawModule(code=SOURCE, options=["-DVALUE=1"])  # type: ignore[arg-type]


def test_a_source_is_compiled_when_first_used() -> None:
    missing = MODULE.get_function("not_there")
    with pytest.raises(CUDADriverError, match=r"^CUDA_ERROR_NOT_FOUND: named symbol not found$") as caught:
        missing.kernel  # noqa: B018
    assert caught.value.status == 500
    broken = cupy.RawModule(code='extern "C" __global__ void f() { nonsense; }').get_function("f")
    with pytest.raises(CompileException, match="nonsense"):
        broken.kernel  # noqa: B018


@pytest.mark.parametrize(
    ("grid", "block", "shared"),
    [((1,), (1025,), 0), ((1,), (32, 33), 0), ((1,), (1, 1, 65), 0), ((1, 65536), (1,), 0), ((1,), (1,), 49153)],
)
def test_a_launch_that_no_gpu_takes_is_refused(
    on: Device, grid: tuple[int, ...], block: tuple[int, ...], shared: int
) -> None:
    with pytest.raises(CUDADriverError, match="CUDA_ERROR_INVALID_VALUE"):
        MODULE.get_function("scale").kernel(grid, block, (None, 0, 1.0), shared)


def test_dynamic_shared_memory_is_there(on: Device) -> None:
    out = on.array(np.zeros(32, np.int32))
    MODULE.get_function("dynamic").kernel((1,), (32,), (out,), 128)
    assert (on.values(out) == np.arange(32) ^ 1).all()


@pytest.mark.parametrize(("at", "side"), [(-1, "before"), (25, "after"), (140, "after")])
def test_a_kernel_that_writes_outside_an_allocation_is_named(on: Device, at: int, side: str) -> None:
    on.run("outside", on.array(np.zeros(25, np.float32)), at)
    with pytest.raises(cupy.emulated.RedZoneDamaged, match=f"kernel outside left bytes written {side} the"):
        on.stream.synchronize()


def test_a_kernel_that_leaves_memory_breaks_the_device(on: Device) -> None:
    on.run("outside", None, 0)
    for _ in range(2):
        with pytest.raises(CUDARuntimeError, match=r"^cudaErrorIllegalAddress: .*kernel outside") as caught:
            on.stream.synchronize()
        assert caught.value.status == 700


def test_all_orders_find_a_race(on: Device) -> None:
    x = on.array(np.zeros(4, np.int32))
    on.run("racing", x)
    on.stream.synchronize()
    cupy.emulated.settings.order = "all"
    on.run("racing", x)
    with pytest.raises(
        cupy.emulated.RaceFound,
        match=r"race: kernel racing gives different results in forward and reverse order, "
        rf"first difference at allocation 0x{x.data.ptr:x} of 16 bytes byte 0",
    ):
        on.stream.synchronize()


def test_all_orders_find_shared_memory_that_nobody_wrote(on: Device) -> None:
    cupy.emulated.settings.order = "all"
    on.run("uninitialised", on.array(np.zeros(32, np.float32)))
    with pytest.raises(cupy.emulated.RaceFound, match="kernel uninitialised"):
        on.stream.synchronize()


def test_all_orders_watch_memory_behind_a_table_of_pointers(on: Device) -> None:
    cupy.emulated.settings.order = "all"
    rows = [on.array(np.zeros(4, np.float32)) for _ in range(3)]
    table = on.array(np.array([row.data.ptr for row in rows], np.uint64))
    on.run("through_table", table, threads=3)
    assert [on.values(row)[0] for row in rows] == [5, 6, 7]
    on.run("racing_through_table", table)
    with pytest.raises(cupy.emulated.RaceFound, match=f"allocation 0x{rows[0].data.ptr:x} of 16 bytes byte 1[45]"):
        on.stream.synchronize()


def test_all_orders_start_from_the_same_memory(on: Device) -> None:
    cupy.emulated.settings.order = "all"
    x = on.array(np.ones(8, np.float32))
    for _ in range(3):
        on.run("scale", x, 8, 2.0)
    assert (on.values(x) == 8).all()


def test_an_unknown_order_is_refused() -> None:
    with pytest.raises(ValueError, match="forward, reverse, random or all, got 'sideways'"):
        cupy.emulated.settings.order = "sideways"


def test_a_graph_keeps_kernels_and_their_arguments(on: Device) -> None:
    x = on.array(np.ones(8, np.float32))
    kernel = cupy.RawModule(code=SOURCE, options=("-DVALUE=1",)).get_function("scale").kernel
    on.stream.begin_capture()
    kernel((1,), (8,), (x, 8, 2.0))
    graph = on.stream.end_capture()
    gone = weakref.ref(kernel)
    del kernel
    gc.collect()
    assert gone() is None
    for _ in range(4):
        graph.launch(on.stream)
    assert (on.values(x) == 16).all()
