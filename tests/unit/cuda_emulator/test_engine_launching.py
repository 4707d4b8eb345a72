"""Arguments, limits of a launch, faults of a thread, and the process after them."""

from __future__ import annotations

import threading
import time
from typing import Any

import numpy as np
import pytest
from engine import Kernel, KernelFault, Order, as_arguments, compile_source

Array = np.ndarray[Any, Any]
Dimensions = tuple[int, int, int]

SOURCE = r"""
struct Row { float* start; long long size; };
struct Table { Row rows[60]; double scale; unsigned char tag; };
struct Small { short value; };

extern "C" __global__ void by_value(Table table, Small small, float* out, char c, double d, bool b) {
    Row row = table.rows[blockIdx.x];
    if (threadIdx.x < row.size) row.start[threadIdx.x] *= table.scale;
    out[0] = small.value + table.tag;
    out[1] = c;
    out[2] = d;
    out[3] = b;
}
extern "C" __global__ void add(float* out, const float* in, int n, long long m, float f) { out[0] = in[0] + n + m + f; }
extern "C" { __global__ void __launch_bounds__(64, 2) in_a_linkage_block(int* out) { out[threadIdx.x] = warpSize; } }

extern "C" __global__ void write_to(int* at, int thread, int* mark) {
    mark[0] = 1;
    __syncthreads();
    if (threadIdx.x == thread && blockIdx.x == 1) *at = 1;
    __syncthreads();
}
extern "C" __global__ void traps(int* out, int thread) {
    if (threadIdx.x == thread) __trap();
    out[threadIdx.x] = 1;
}
extern "C" __global__ void asserts(int* out) { assert(threadIdx.x < 5 && out != nullptr); }
extern "C" __global__ void divides(int* out, int by) { out[0] = 7 / by; }
extern "C" __global__ void recurses(int* out);
__device__ __noinline__ int deep(volatile int* out, int n) {
    volatile int kept[256];
    kept[n % 256] = n;
    return n == 0 ? kept[0] : deep(out, n - 1) + kept[n % 256];
}
extern "C" __global__ void recurses(int* out) { out[0] = deep(out, 100000); }
extern "C" __global__ void loads_four(float* out, const float4* in) { out[0] = in[0].w; }
extern "C" __global__ void nothing() {}
extern "C" __global__ void increments(int* out) {
    int mine = out[blockIdx.x];
    __syncthreads();
    if (threadIdx.x == 0) out[blockIdx.x] = mine + 1;
}
"""


@pytest.fixture(scope="module")
def kernels() -> dict[str, Kernel]:
    return compile_source(SOURCE).kernels


def test_parameters_are_described(kernels: dict[str, Kernel]) -> None:
    assert [(p.size, p.kind) for p in kernels["add"].parameters] == [
        (8, "pointer"),
        (8, "pointer"),
        (4, "integer"),
        (8, "integer"),
        (4, "float"),
    ]
    assert [(p.size, p.kind) for p in kernels["by_value"].parameters] == [
        (976, "struct"),
        (2, "struct"),
        (8, "pointer"),
        (1, "integer"),
        (8, "float"),
        (1, "integer"),
    ]
    assert kernels["nothing"].parameters == ()
    assert kernels["by_value"].name == "by_value"


def test_structs_and_small_types_are_passed_by_value(kernels: dict[str, Kernel]) -> None:
    row = np.dtype([("start", np.uint64), ("size", np.int64)])
    table = np.zeros((), np.dtype([("rows", row, 60), ("scale", np.float64), ("tag", np.uint8), ("end", "V7")]))
    rows = [np.arange(3, dtype=np.float32), np.arange(5, dtype=np.float32)]
    for i, values in enumerate(rows):
        table["rows"][i] = (values.ctypes.data, values.size)
    table["scale"], table["tag"] = 10.0, 200
    out: Array = np.zeros(4, np.float32)
    arguments = as_arguments(table, np.int16(-3), out, np.int8(-7), 0.25, np.uint8(1))
    kernels["by_value"].run((2, 1, 1), (8, 1, 1), arguments)
    assert [values.tolist() for values in rows] == [[0, 10, 20], [0, 10, 20, 30, 40]]
    assert out.tolist() == [197, -7, 0.25, 1]


def test_a_kernel_inside_a_linkage_block_is_found(kernels: dict[str, Kernel]) -> None:
    out: Array = np.zeros(4, np.int32)
    kernels["in_a_linkage_block"].run((1, 1, 1), (4, 1, 1), as_arguments(out))
    assert out.tolist() == [32] * 4


def test_another_number_of_arguments_is_refused(kernels: dict[str, Kernel]) -> None:
    with pytest.raises(TypeError, match="kernel add takes 5 arguments, got 1"):
        kernels["add"].run((1, 1, 1), (1, 1, 1), as_arguments(None))


def test_an_argument_of_another_size_is_refused(kernels: dict[str, Kernel]) -> None:
    with pytest.raises(TypeError, match="add: argument 2 has 8 bytes, the parameter is integer of 4 bytes"):
        kernels["add"].run((1, 1, 1), (1, 1, 1), as_arguments(None, None, 1, 2, np.float32(0)))
    with pytest.raises(TypeError, match="add: argument 4 has 8 bytes, the parameter is float of 4 bytes"):
        kernels["add"].run((1, 1, 1), (1, 1, 1), as_arguments(None, None, np.int32(1), 2, 0.0))


@pytest.mark.parametrize(
    ("grid", "block", "says"),
    [
        ((0, 1, 1), (1, 1, 1), "a grid of (0, 1, 1)"),
        ((1, 1, 1), (0, 1, 1), "a block of (0, 1, 1)"),
        ((1, 1, 1), (1025, 1, 1), "1024 in all"),
        ((1, 1, 1), (32, 32, 2), "1024 in all"),
        ((1, 1, 1), (1, 1, 65), "64 along z"),
        ((1, 65536, 1), (1, 1, 1), "65535 along y and z"),
        ((1, 1, 65536), (1, 1, 1), "65535 along y and z"),
        ((2**31, 1, 1), (1, 1, 1), "2147483647 along x"),
        ((-1, 1, 1), (1, 1, 1), "at least 1"),
    ],
)
def test_launches_beyond_the_limits_are_refused(
    kernels: dict[str, Kernel], grid: Dimensions, block: Dimensions, says: str
) -> None:
    with pytest.raises(KernelFault) as caught:
        kernels["nothing"].run(grid, block, [])
    assert caught.value.kind == "launch"
    assert says in caught.value.message


def test_launches_at_the_limits_run(kernels: dict[str, Kernel]) -> None:
    kernels["nothing"].run((1, 65535, 1), (1, 1, 1), [])
    kernels["nothing"].run((1, 1, 65535), (1, 1, 1), [])
    kernels["nothing"].run((1, 1, 1), (16, 1, 64), [], shared_bytes=49152)
    with pytest.raises(KernelFault, match="49153 bytes of dynamic shared memory: at most 49152"):
        kernels["nothing"].run((1, 1, 1), (1, 1, 1), [], shared_bytes=49153)


@pytest.mark.parametrize("order", ["forward", "reverse", "random"])
@pytest.mark.parametrize("address", [0, 8, 2**47 - 16, 2**64 - 8])
def test_an_illegal_address_is_reported_and_the_process_goes_on(
    kernels: dict[str, Kernel], order: Order, address: int
) -> None:
    mark: Array = np.zeros(1, np.int32)
    for _ in range(3):
        with pytest.raises(KernelFault) as caught:
            arguments = as_arguments(np.uint64(address), np.int32(37), mark)
            kernels["write_to"].run((2, 1, 1), (64, 1, 1), arguments, order=order)
        assert caught.value.kind == "illegal address"
        assert "kernel write_to, block (1, 0, 0), thread (37, 0, 0): access to" in caught.value.message
    target: Array = np.zeros(1, np.int32)
    kernels["write_to"].run((2, 1, 1), (64, 1, 1), as_arguments(target, np.int32(37), mark), order=order)
    assert target[0] == 1


def test_a_misaligned_address_is_illegal(kernels: dict[str, Kernel]) -> None:
    values: Array = np.arange(16, dtype=np.float32)
    first = next(i for i in range(4) if values[i:].ctypes.data % 16 == 0)
    out: Array = np.zeros(1, np.float32)
    kernels["loads_four"].run((1, 1, 1), (1, 1, 1), as_arguments(out, values[first:]))
    assert out[0] == first + 3
    for offset, target in ((1, out), (2, out)):
        with pytest.raises(KernelFault, match="misaligned access") as caught:
            kernels["loads_four"].run((1, 1, 1), (1, 1, 1), as_arguments(target, values[first + offset :]))
        assert caught.value.kind == "illegal address"
    with pytest.raises(KernelFault, match="misaligned access"):
        kernels["loads_four"].run((1, 1, 1), (1, 1, 1), as_arguments(np.uint64(out.ctypes.data + 2), values[first:]))


def test_an_unknown_order_is_refused(kernels: dict[str, Kernel]) -> None:
    order: Any = "sideways"
    with pytest.raises(ValueError, match="order is one of forward, reverse, random, got 'sideways'"):
        kernels["nothing"].run((1, 1, 1), (1, 1, 1), [], order=order)


def test_traps_name_the_thread_and_the_line(kernels: dict[str, Kernel]) -> None:
    out: Array = np.zeros(8, np.int32)
    with pytest.raises(KernelFault, match=r"thread \(4, 0, 0\): __trap\(\) in traps \(line 24\)") as caught:
        kernels["traps"].run((1, 1, 1), (8, 1, 1), as_arguments(out, np.int32(4)))
    assert caught.value.kind == "trap"
    assert out.tolist() == [1, 1, 1, 1, 0, 0, 0, 0]
    with pytest.raises(
        KernelFault, match=r"thread \(5, 0, 0\): assert\(threadIdx.x < 5 && out != nullptr\) in asserts"
    ):
        kernels["asserts"].run((1, 1, 1), (8, 1, 1), as_arguments(out))
    with pytest.raises(KernelFault, match=r"trap: kernel divides.*integer division by zero"):
        kernels["divides"].run((1, 1, 1), (1, 1, 1), as_arguments(out, np.int32(0)))


def test_a_stack_that_overflows_is_an_illegal_address(kernels: dict[str, Kernel]) -> None:
    out: Array = np.zeros(1, np.int32)
    with pytest.raises(KernelFault, match="local variables or recursion beyond the stack") as caught:
        kernels["recurses"].run((1, 1, 1), (1, 1, 1), as_arguments(out))
    assert caught.value.kind == "illegal address"


def test_threads_of_python_may_launch_at_once(kernels: dict[str, Kernel]) -> None:
    out: Array = np.zeros((4, 500), np.int32)
    failures: list[KernelFault] = []

    def launch(row: Array) -> None:
        for i in range(40):
            kernels["increments"].run((500, 1, 1), (40, 1, 1), as_arguments(row))
            if i % 10 == 0:
                try:
                    kernels["increments"].run((3, 1, 1), (40, 1, 1), as_arguments(None))
                except KernelFault as fault:
                    failures.append(fault)

    threads = [threading.Thread(target=launch, args=(row,)) for row in out]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert out.tolist() == [[40] * 500] * 4
    assert [fault.kind for fault in failures] == ["illegal address"] * 16


def test_a_small_launch_costs_little(kernels: dict[str, Kernel]) -> None:
    """Loose: ten times what it takes on a machine that does nothing else."""
    kernel = kernels["nothing"]
    start = time.thread_time()
    for _ in range(1000):
        kernel.run((1, 1, 1), (32, 1, 1), [])
    assert time.thread_time() - start < 0.1
