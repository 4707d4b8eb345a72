"""Grids, orders and barriers: which threads run, in which order, and what they see of each other."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from engine import Kernel, KernelFault, Order, as_arguments, compile_source

ORDERS: tuple[Order, ...] = ("forward", "reverse", "random")
Ints = np.ndarray[Any, np.dtype[np.int32]]

SOURCE = r"""
extern "C" __global__ void coordinates(int* seen) {
    long long block = (blockIdx.z * (long long)gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x;
    long long thread = (threadIdx.z * (long long)blockDim.y + threadIdx.y) * blockDim.x + threadIdx.x;
    seen[block * (blockDim.x * blockDim.y * blockDim.z) + thread] +=
        100000 * blockIdx.z + 10000 * blockIdx.y + 1000 * blockIdx.x +
        100 * threadIdx.z + 10 * threadIdx.y + threadIdx.x;
}

extern "C" __global__ void turns(int* next, int* turn_of_block, int* turn_of_thread) {
    int turn = atomicAdd(next, 1);
    if (threadIdx.x == 0) turn_of_block[blockIdx.x] = turn;
    if (blockIdx.x == 0) turn_of_thread[threadIdx.x] = turn;
}

extern "C" __global__ void rounds(int* next, int* turn) {
    for (int round = 0; round < 3; ++round) {
        turn[round * blockDim.x + threadIdx.x] = atomicAdd(next, 1);
        __syncthreads();
    }
}

extern "C" __global__ void reversed(int* out, int is_right) {
    __shared__ int held[256];
    held[threadIdx.x] = 1000 * blockIdx.x + threadIdx.x;
    if (is_right) __syncthreads();
    out[blockIdx.x * blockDim.x + threadIdx.x] = held[blockDim.x - 1 - threadIdx.x];
}

extern "C" __global__ void early_exit(int* sums, int n) {
    __shared__ int held[96];
    held[threadIdx.x] = threadIdx.x;
    if (threadIdx.x >= n) return;
    __syncthreads();
    int sum = 0;
    for (int i = 0; i < n; ++i) sum += held[i];
    sums[threadIdx.x] = sum;
}

extern "C" __global__ void exit_after_others_wait(int* out) {
    if (threadIdx.x != 0) __syncthreads();
    else out[0] = 1;
    if (threadIdx.x != 0) out[threadIdx.x] = 2;
}

extern "C" __global__ void votes(int* out, int threshold) {
    int holds = int(threadIdx.x) < threshold;
    int count = __syncthreads_count(holds), any = __syncthreads_or(holds * 4), all = __syncthreads_and(holds * 4);
    out[threadIdx.x] = count * 100 + any * 10 + all;
}

extern "C" __global__ void many_barriers(int* out, int rounds) {
    __shared__ int held[2][64];
    held[0][threadIdx.x] = threadIdx.x;
    __syncthreads();
    for (int round = 0; round < rounds; ++round) {
        held[1 - round % 2][threadIdx.x] = held[round % 2][(threadIdx.x + 1) % 64];
        __syncthreads();
    }
    out[threadIdx.x] = held[rounds % 2][threadIdx.x];
}

__device__ int neighbour(int mine) {
    __shared__ int held[64];
    held[threadIdx.x] = mine;
    __syncthreads();
    int theirs = held[(threadIdx.x + 1) % 64];
    __syncthreads();
    return theirs;
}

extern "C" __global__ void nested(int* out) { out[threadIdx.x] = neighbour(neighbour(threadIdx.x)); }
"""


@pytest.fixture(scope="module")
def kernels() -> dict[str, Kernel]:
    return compile_source(SOURCE).kernels


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize(
    ("grid", "block"),
    [
        ((1, 1, 1), (1, 1, 1)),
        ((5, 1, 1), (7, 1, 1)),
        ((3, 2, 1), (4, 3, 1)),
        ((2, 3, 4), (5, 2, 3)),
        ((7, 1, 2), (1, 1, 9)),
    ],
)
def test_every_thread_runs_once_with_its_coordinates(
    kernels: dict[str, Kernel], grid: tuple[int, int, int], block: tuple[int, int, int], order: Order
) -> None:
    expected = [
        100000 * bz + 10000 * by + 1000 * bx + 100 * z + 10 * y + x
        for bz in range(grid[2])
        for by in range(grid[1])
        for bx in range(grid[0])
        for z in range(block[2])
        for y in range(block[1])
        for x in range(block[0])
    ]
    seen: Ints = np.zeros(len(expected), np.int32)
    kernels["coordinates"].run(grid, block, as_arguments(seen), order=order, seed=3)
    assert seen.tolist() == expected


def turns(kernels: dict[str, Kernel], order: Order, seed: int = 0) -> tuple[list[int], list[int]]:
    next_turn, blocks, threads = np.zeros(1, np.int32), np.zeros(6, np.int32), np.zeros(8, np.int32)
    kernels["turns"].run((6, 1, 1), (8, 1, 1), as_arguments(next_turn, blocks, threads), order=order, seed=seed)
    return blocks.tolist(), threads.tolist()


def test_blocks_and_threads_follow_each_other_in_the_order_asked_for(kernels: dict[str, Kernel]) -> None:
    assert turns(kernels, "forward") == ([0, 8, 16, 24, 32, 40], [0, 1, 2, 3, 4, 5, 6, 7])
    assert turns(kernels, "reverse") == ([47, 39, 31, 23, 15, 7], [47, 46, 45, 44, 43, 42, 41, 40])


def test_a_random_order_is_that_of_its_seed(kernels: dict[str, Kernel]) -> None:
    assert turns(kernels, "random", 1) == turns(kernels, "random", 1)
    drawn = {str(turns(kernels, "random", seed)) for seed in range(10)}
    assert len(drawn) == 10


def rounds(kernels: dict[str, Kernel], order: Order, seed: int = 0) -> list[list[int]]:
    next_turn, turn = np.zeros(1, np.int32), np.zeros((3, 8), np.int32)
    kernels["rounds"].run((1, 1, 1), (8, 1, 1), as_arguments(next_turn, turn), order=order, seed=seed)
    return [[int(value) - 8 * i for value in row] for i, row in enumerate(turn)]


def test_the_order_holds_again_after_every_barrier(kernels: dict[str, Kernel]) -> None:
    assert rounds(kernels, "forward") == [[0, 1, 2, 3, 4, 5, 6, 7]] * 3
    assert rounds(kernels, "reverse") == [[7, 6, 5, 4, 3, 2, 1, 0]] * 3
    first, second, third = rounds(kernels, "random", 5)
    assert sorted(first) == sorted(second) == sorted(third) == list(range(8))
    assert first != second != third != first


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("threads", [1, 31, 32, 33, 100, 256])
def test_a_barrier_shows_what_all_others_wrote(kernels: dict[str, Kernel], order: Order, threads: int) -> None:
    out: Ints = np.zeros((3, threads), np.int32)
    kernels["reversed"].run((3, 1, 1), (threads, 1, 1), as_arguments(out, np.int32(1)), order=order)
    assert out.tolist() == [[1000 * b + threads - 1 - t for t in range(threads)] for b in range(3)]


def test_without_its_barrier_the_same_kernel_differs_with_the_order(kernels: dict[str, Kernel]) -> None:
    results = []
    for order in ORDERS:
        out: Ints = np.zeros(64, np.int32)
        kernels["reversed"].run((1, 1, 1), (64, 1, 1), as_arguments(out, np.int32(0)), order=order)
        results.append(out.tolist())
    right = list(range(63, -1, -1))
    assert all(result != right for result in results)
    assert results[0] == [-1] * 32 + right[32:]
    assert results[1] == right[:32] + [-1] * 32
    assert results[2] not in results[:2]


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("n", [1, 31, 32, 70, 96])
def test_threads_that_returned_are_not_waited_for(kernels: dict[str, Kernel], order: Order, n: int) -> None:
    sums: Ints = np.zeros(96, np.int32)
    kernels["early_exit"].run((1, 1, 1), (96, 1, 1), as_arguments(sums, np.int32(n)), order=order)
    assert sums.tolist() == [n * (n - 1) // 2] * n + [0] * (96 - n)


@pytest.mark.parametrize("order", ORDERS)
def test_a_barrier_opens_when_the_last_one_not_waiting_returns(kernels: dict[str, Kernel], order: Order) -> None:
    out: Ints = np.zeros(64, np.int32)
    kernels["exit_after_others_wait"].run((1, 1, 1), (64, 1, 1), as_arguments(out), order=order)
    assert out.tolist() == [1] + [2] * 63


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize(("threshold", "expected"), [(0, 0), (1, 110), (39, 3910), (40, 4011)])
def test_barriers_that_count(kernels: dict[str, Kernel], order: Order, threshold: int, expected: int) -> None:
    out: Ints = np.zeros(40, np.int32)
    kernels["votes"].run((1, 1, 1), (40, 1, 1), as_arguments(out, np.int32(threshold)), order=order)
    assert out.tolist() == [expected] * 40


@pytest.mark.parametrize("order", ORDERS)
def test_barriers_in_loops_and_functions(kernels: dict[str, Kernel], order: Order) -> None:
    out: Ints = np.zeros(64, np.int32)
    kernels["many_barriers"].run((2, 1, 1), (64, 1, 1), as_arguments(out, np.int32(37)), order=order)
    assert out.tolist() == [(i + 37) % 64 for i in range(64)]
    kernels["nested"].run((2, 1, 1), (64, 1, 1), as_arguments(out), order=order)
    assert out.tolist() == [(i + 2) % 64 for i in range(64)]


DIVERGENT = r"""
extern "C" __global__ void two_sites(int* out) {
    if (threadIdx.x < 16) {
        __syncthreads();
    } else {
        __syncthreads();
    }
}
extern "C" __global__ void barrier_against_warp(int* out) {
    if (threadIdx.x % 32 < 16) __syncthreads();
    else __syncwarp();
}
extern "C" __global__ void barrier_against_shuffle(int* out) {
    if (threadIdx.x % 32 == 3) __syncthreads();
    out[threadIdx.x] = __shfl_sync(0xffffffffu, int(threadIdx.x), 0);
    if (threadIdx.x % 32 != 3) __syncthreads();
}
#define TWICE(name)                                              \
    extern "C" __global__ void name(int* out) {                  \
        if (threadIdx.x == 0) __syncthreads(); else __syncthreads(); \
    }
TWICE(two_sites_in_a_macro)
"""


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize(
    ("name", "kind", "says"),
    [
        ("two_sites", "divergent barrier", "of two_sites (line 4)"),
        ("two_sites", "divergent barrier", "of two_sites (line 6)"),
        ("two_sites_in_a_macro", "divergent barrier", "threads of the block wait at another"),
        ("barrier_against_warp", "deadlock", "__syncwarp of barrier_against_warp (line 11) can never complete"),
        ("barrier_against_shuffle", "deadlock", "lanes 00000008 wait at __syncthreads"),
    ],
)
def test_barriers_that_not_all_reach(name: str, kind: str, says: str, order: Order) -> None:
    kernel = compile_source(DIVERGENT).kernels[name]
    out: Ints = np.zeros(64, np.int32)
    with pytest.raises(KernelFault) as caught:
        kernel.run((1, 1, 1), (64, 1, 1), as_arguments(out), order=order)
    assert caught.value.kind == kind
    assert says in caught.value.message
    assert f"kernel {name}, block (0, 0, 0), thread (" in caught.value.message
