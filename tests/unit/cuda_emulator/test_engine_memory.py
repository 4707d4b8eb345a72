"""Shared memory, static and dynamic, and atomic operations."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from engine import CompileError, Kernel, KernelFault, Order, as_arguments, compile_source

ORDERS: tuple[Order, ...] = ("forward", "reverse", "random")
Array = np.ndarray[Any, Any]

SOURCE = r"""
struct Pair { int first; float second; };
extern __shared__ double dynamic_at_file_scope[];
__constant__ float table[3] = {1.5f, 2.5f, 3.5f};

template <class T, int N>
__device__ T* scratch() {
    __shared__ T held[N];
    return held;
}

extern "C" __global__ void stale(unsigned* out) {
    __shared__ unsigned first[4], second;
    __shared__ Pair pairs[2];
    static __shared__ __align__(16) unsigned char bytes[2][8];
    int block = blockIdx.x * 16;
    out[block] = first[3];
    out[block + 1] = second;
    out[block + 2] = pairs[1].first;
    out[block + 3] = bytes[1][7];
    out[block + 4] = sizeof second;
    out[block + 5] = scratch<unsigned, 3>()[1];
    out[block + 6] = *scratch<unsigned short, 3>();
    out[block + 7] = sizeof first / sizeof *first * 100 + sizeof bytes + (size_t)bytes % 16;
    first[3] = second = pairs[1].first = bytes[1][7] = 1;
    scratch<unsigned, 3>()[1] = *scratch<unsigned short, 3>() = 1;
}
extern "C" __global__ void dynamic(int* out, int n) {
    extern __shared__ int held[];
    out[0] = held[n - 1];
    held[n - 1] = 5;
    out[1] = held[n - 1];
    out[2] = (size_t)held % 16;
    out[3] = (void*)held == (void*)dynamic_at_file_scope;
}
extern "C" __global__ void dynamic_double(double* out) {
    dynamic_at_file_scope[threadIdx.x] = threadIdx.x;
    __syncthreads();
    out[threadIdx.x] = dynamic_at_file_scope[blockDim.x - 1 - threadIdx.x];
}
extern "C" __global__ void constants(float* out) { out[threadIdx.x] = __ldg(&table[threadIdx.x]); }

extern "C" __global__ void write_static(int at) {
    __shared__ int before[4];
    __shared__ int held[4];
    __shared__ int after[4];
    before[0] = after[0] = 0;
    held[at] = threadIdx.x;
}
extern "C" __global__ void write_in_function(int at) { scratch<unsigned, 3>()[at] = 0; }
extern "C" __global__ void write_dynamic(long long at) {
    extern __shared__ unsigned char bytes[];
    if (threadIdx.x == 3) bytes[at] = 0;
}
extern "C" __global__ void read_dynamic(unsigned char* out, long long at) {
    extern __shared__ unsigned char bytes[];
    out[0] = bytes[at];
}
extern "C" __global__ void static_bytes() {
    __shared__ float held[1000];
    held[threadIdx.x] = 0;
}
"""


@pytest.fixture(scope="module")
def kernels() -> dict[str, Kernel]:
    return compile_source(SOURCE).kernels


@pytest.mark.parametrize(("garbage", "word"), [(0xFF, 0xFFFFFFFF), (0x7F, 0x7F7F7F7F), (0, 0)])
def test_static_shared_memory_begins_as_garbage_in_every_block(
    kernels: dict[str, Kernel], garbage: int, word: int
) -> None:
    out: Array = np.zeros((3, 16), np.uint32)
    kernels["stale"].run((3, 1, 1), (1, 1, 1), as_arguments(out), garbage=garbage)
    assert out[:, :8].tolist() == [[word, word, word, garbage, 4, word, word & 0xFFFF, 416]] * 3


@pytest.mark.parametrize("count", [1, 3, 4, 12288])
def test_dynamic_shared_memory_begins_as_garbage(kernels: dict[str, Kernel], count: int) -> None:
    out: Array = np.zeros(4, np.int32)
    arguments = as_arguments(out, np.int32(count))
    kernels["dynamic"].max_shared_bytes = 50_000
    kernels["dynamic"].run((2, 1, 1), (1, 1, 1), arguments, shared_bytes=4 * count, garbage=0x11)
    assert out.tolist() == [0x11111111, 5, 0, 1]


@pytest.mark.parametrize("order", ORDERS)
def test_dynamic_shared_memory_is_of_the_block(kernels: dict[str, Kernel], order: Order) -> None:
    out: Array = np.zeros(40)
    kernels["dynamic_double"].run((1, 1, 1), (40, 1, 1), as_arguments(out), shared_bytes=320, order=order)
    assert out.tolist() == list(range(39, -1, -1))


def test_constants(kernels: dict[str, Kernel]) -> None:
    out: Array = np.zeros(3, np.float32)
    kernels["constants"].run((1, 1, 1), (3, 1, 1), as_arguments(out))
    assert out.tolist() == [1.5, 2.5, 3.5]


@pytest.mark.parametrize("at", [4, 7, 19, -1, -16])
def test_a_write_beside_a_static_shared_array_is_a_fault(kernels: dict[str, Kernel], at: int) -> None:
    with pytest.raises(KernelFault, match=r"write_static, block \(0, 0, 0\): .*static shared memory") as caught:
        kernels["write_static"].run((2, 1, 1), (1, 1, 1), as_arguments(np.int32(at)))
    assert caught.value.kind == "illegal address"
    kernels["write_static"].run((2, 1, 1), (1, 1, 1), as_arguments(np.int32(3)))


def test_a_write_beside_a_shared_array_of_a_function_is_a_fault(kernels: dict[str, Kernel]) -> None:
    kernels["write_in_function"].run((1, 1, 1), (1, 1, 1), as_arguments(np.int32(2)))
    with pytest.raises(KernelFault, match="static shared memory"):
        kernels["write_in_function"].run((1, 1, 1), (1, 1, 1), as_arguments(np.int32(3)))


@pytest.mark.parametrize("at", [100, 111, 112, 50_000, -1, -200])
def test_a_write_beside_dynamic_shared_memory_is_a_fault(kernels: dict[str, Kernel], at: int) -> None:
    with pytest.raises(KernelFault, match="dynamic shared memory") as caught:
        kernels["write_dynamic"].run((1, 1, 1), (32, 1, 1), as_arguments(at), shared_bytes=100)
    assert caught.value.kind == "illegal address"
    assert "100 bytes" in caught.value.message
    assert ("thread (3, 0, 0)" in caught.value.message) == (at >= 112)
    kernels["write_dynamic"].run((1, 1, 1), (32, 1, 1), as_arguments(99), shared_bytes=100)


def test_a_read_past_dynamic_shared_memory_is_a_fault_where_it_happens(kernels: dict[str, Kernel]) -> None:
    out: Array = np.zeros(1, np.uint8)
    with pytest.raises(KernelFault, match=r"read_dynamic, block \(0, 0, 0\), thread \(0, 0, 0\).*past the 0 bytes"):
        kernels["read_dynamic"].run((1, 1, 1), (1, 1, 1), as_arguments(out, 0))


def test_static_and_dynamic_shared_memory_count_together(kernels: dict[str, Kernel]) -> None:
    kernel = kernels["static_bytes"]
    kernel.run((2, 1, 1), (32, 1, 1), [], shared_bytes=49152 - 4000)
    with pytest.raises(
        KernelFault, match=r"4000 bytes of static and 45153 of dynamic .*: at most 49152 together"
    ) as caught:
        kernel.run((1, 1, 1), (32, 1, 1), [], shared_bytes=49153 - 4000)
    assert caught.value.kind == "launch"


def test_a_declaration_that_is_not_understood_is_refused() -> None:
    with pytest.raises(CompileError, match="not known as dynamic shared memory: int held"):
        compile_source('extern "C" __global__ void k() { extern __shared__ int held[4]; }')
    with pytest.raises(CompileError, match="not known as shared memory: int"):
        compile_source('extern "C" __global__ void k() { __shared__ int (*held)[4]; }')
    with pytest.raises(CompileError, match=r"declared in functions only, not: int held \[ 4 \]"):
        compile_source('__shared__ int held[4];\nextern "C" __global__ void k() { held[0] = 1; }')


ATOMICS = r"""
#define INTEGERS(T, S)                                                       \
    extern "C" __global__ void all_##S(T* at, T* old, T operand) {           \
        old[0] = atomicAdd(&at[0], operand);                                 \
        old[1] = atomicMax(&at[1], operand);                                 \
        old[2] = atomicMin(&at[2], operand);                                 \
        old[3] = atomicOr(&at[3], operand);                                  \
        old[4] = atomicAnd(&at[4], operand);                                 \
        old[5] = atomicExch(&at[5], operand);                                \
        old[6] = atomicCAS(&at[6], (T)100, operand);                         \
        old[7] = atomicCAS(&at[7], (T)101, operand);                         \
        old[8] = atomicXor(&at[8], operand);                                 \
    }
INTEGERS(int, int32)
INTEGERS(unsigned, uint32)
INTEGERS(unsigned long long, uint64)
extern "C" __global__ void subtract(int* a, unsigned* b) { atomicSub(a, 3); atomicSub(b, 3u); }
extern "C" __global__ void floats(float* sum, float* last) {
    atomicAdd(sum, 0.5f);
    atomicExch(last, float(threadIdx.x));
}
extern "C" __global__ void last_block(int* counter, int* last, int* sums) {
    __shared__ int is_last;
    atomicAdd(&sums[threadIdx.x % 4], int(blockIdx.x));
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) is_last = atomicAdd(counter, 1) == int(gridDim.x) - 1;
    __syncthreads();
    if (is_last) last[threadIdx.x] = sums[threadIdx.x % 4];
}
"""


@pytest.mark.parametrize("dtype", ["int32", "uint32", "uint64"])
def test_atomics_change_memory_and_give_what_was_there(dtype: str) -> None:
    kernel = compile_source(ATOMICS).kernels[f"all_{dtype}"]
    at, old = np.full(9, 100, dtype), np.zeros(9, dtype)
    kernel.run((1, 1, 1), (1, 1, 1), as_arguments(at, old, np.dtype(dtype).type(43)))
    assert old.tolist() == [100] * 9
    assert at.tolist() == [143, 100, 43, 0x6F, 0x20, 43, 43, 100, 0x4F]


def test_atomic_subtraction_wraps() -> None:
    kernel = compile_source(ATOMICS).kernels["subtract"]
    signed, unsigned = np.zeros(1, np.int32), np.zeros(1, np.uint32)
    kernel.run((1, 1, 1), (2, 1, 1), as_arguments(signed, unsigned))
    assert (int(signed[0]), int(unsigned[0])) == (-6, 2**32 - 6)


@pytest.mark.parametrize(("order", "last_value"), [("forward", 63), ("reverse", 0)])
def test_atomics_of_floats(order: Order, last_value: int) -> None:
    total, last = np.zeros(1, np.float32), np.zeros(1, np.float32)
    compile_source(ATOMICS).kernels["floats"].run((2, 1, 1), (64, 1, 1), as_arguments(total, last), order=order)
    assert (total[0], last[0]) == (64.0, last_value)


@pytest.mark.parametrize("order", ORDERS)
def test_the_last_block_sees_what_the_others_wrote(order: Order) -> None:
    counter, last, sums = np.zeros(1, np.int32), np.zeros(32, np.int32), np.zeros(4, np.int32)
    kernel = compile_source(ATOMICS).kernels["last_block"]
    kernel.run((5, 1, 1), (32, 1, 1), as_arguments(counter, last, sums), order=order, seed=2)
    assert last.tolist() == [80] * 32
