"""Shuffles, ballots and masks of a warp, against results worked out by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from engine import Kernel, KernelFault, Order, as_arguments, compile_source

ORDERS: tuple[Order, ...] = ("forward", "reverse", "random")
FULL = 0xFFFFFFFF
TYPES = {"int": "i4", "unsigned": "u4", "long long": "i8", "unsigned long long": "u8", "float": "f4", "double": "f8"}
Array = np.ndarray[Any, Any]

SHUFFLES = "".join(
    f"""
extern "C" __global__ void {name}_{kind.replace(" ", "_")}({kind}* out, const {kind}* in, int operand, int width) {{
    out[threadIdx.x] = __shfl{infix}_sync(0xffffffffu, in[threadIdx.x], operand, width);
}}"""
    for name, infix in [("index", ""), ("up", "_up"), ("down", "_down"), ("xor", "_xor")]
    for kind in TYPES
)

OTHERS = r"""
extern "C" __global__ void votes(unsigned* out, int divisor) {
    int holds = threadIdx.x % divisor == 0;
    out[threadIdx.x] = __ballot_sync(0xffffffffu, holds ? 8 : 0);
    out[blockDim.x + threadIdx.x] = __any_sync(0xffffffffu, holds) * 2 + __all_sync(0xffffffffu, holds);
}
extern "C" __global__ void halves(int* out) {
    int lane = threadIdx.x % 32;
    if (lane < 16) {
        for (int i = 0; i < 3; ++i) out[threadIdx.x] += __shfl_sync(0x0000ffffu, lane, i);
    } else {
        out[threadIdx.x] = __shfl_sync(0xffff0000u, lane, 31);
    }
    __syncwarp();
    out[threadIdx.x] += 100 * __shfl_xor_sync(0xffffffffu, lane, 16);
}
extern "C" __global__ void reduce(float* out, const float* in) {
    float sum = in[threadIdx.x];
    for (int offset = 16; offset > 0; offset /= 2) sum += __shfl_down_sync(0xffffffffu, sum, offset);
    if (threadIdx.x % 32 == 0) out[threadIdx.x / 32] = sum;
}
extern "C" __global__ void syncwarp(int* out) {
    __shared__ int held[64];
    held[threadIdx.x] = threadIdx.x;
    __syncwarp();
    out[threadIdx.x] = held[threadIdx.x ^ 1];
    __syncwarp(0xffffffffu);
}
extern "C" __global__ void fast_lane(int* out) {
    int lane = threadIdx.x;
    int first = __shfl_sync(0xffffffffu, lane, 0);
    if (lane == 0) for (int i = 0; i < 5; ++i) first = __shfl_sync(1u, 1000 + i, 0);
    out[lane] = first;
}
extern "C" __global__ void active(unsigned* out) {
    if (threadIdx.x >= 24) return;
    if (threadIdx.x % 2) out[threadIdx.x] = __activemask();
    else if (threadIdx.x < 8) out[threadIdx.x] = __activemask();
    out[32 + threadIdx.x] = __ballot_sync(0xffffffffu, 1);
}
extern "C" __global__ void undefined_source(unsigned* out) {
    if (threadIdx.x < 4) out[threadIdx.x] = __shfl_sync(0xfu, threadIdx.x, threadIdx.x * 2);
}
extern "C" __global__ void layout_2d(int* out) {
    int thread = threadIdx.y * blockDim.x + threadIdx.x;
    out[thread] = __shfl_sync(0xffffffffu, thread, 5);
}

extern "C" __global__ void left_before(int* out) {
    if (threadIdx.x % 32 >= 16) return;
    out[threadIdx.x] = __shfl_sync(0xffffffffu, 1, 0);
}
extern "C" __global__ void left_while_waited_for(int* out) {
    if (threadIdx.x % 32 < 31) out[threadIdx.x] = __shfl_sync(0xffffffffu, 1, 0);
}
extern "C" __global__ void without_itself(int* out) { out[threadIdx.x] = __shfl_sync(0xfffffffeu, 1, 1); }
extern "C" __global__ void other_mask(int* out) {
    unsigned mask = threadIdx.x < 16 ? 0xffffffffu : 0xffff0001u;
    out[threadIdx.x] = __shfl_sync(threadIdx.x == 0 ? 0xffffffffu : mask | 1u << threadIdx.x, 1, 0);
}
extern "C" __global__ void other_operation(int* out) {
    if (threadIdx.x < 4) out[threadIdx.x] = __shfl_sync(0xffffffffu, 1, 0);
    else out[threadIdx.x] = __ballot_sync(0xffffffffu, 1);
}
"""


@pytest.fixture(scope="module")
def shuffles() -> dict[str, Kernel]:
    return compile_source(SHUFFLES).kernels


@pytest.fixture(scope="module")
def kernels() -> dict[str, Kernel]:
    return compile_source(OTHERS).kernels


def sources(name: str, operand: int, width: int) -> list[int]:
    """From the programming guide: which lane each of 32 reads."""
    read = []
    for lane in range(32):
        first = lane // width * width
        if name == "index":
            wanted = first + operand % width
        elif name == "up":
            wanted = lane - operand if lane - operand >= first else lane
        elif name == "down":
            wanted = lane + operand if lane + operand < first + width else lane
        else:
            wanted = lane ^ operand if (lane ^ operand) < first + width else lane
        read.append(wanted)
    return read


@pytest.mark.parametrize("kind", TYPES)
@pytest.mark.parametrize("name", ["index", "up", "down", "xor"])
def test_shuffles_of_every_type_and_width(shuffles: dict[str, Kernel], name: str, kind: str) -> None:
    values: Array = (np.arange(64, dtype=np.float64) * 1.0e3 + 7).astype(TYPES[kind])
    for number, (width, operand) in enumerate((w, o) for w in (1, 2, 4, 8, 16, 32) for o in (0, 1, 3, 8, 17, 31)):
        out = np.zeros_like(values)
        arguments = as_arguments(out, values, np.int32(operand), np.int32(width))
        shuffles[f"{name}_{kind.replace(' ', '_')}"].run((1, 1, 1), (64, 1, 1), arguments, order=ORDERS[number % 3])
        read = sources(name, operand, width)
        assert out.tolist() == values[read + [32 + lane for lane in read]].tolist()


def test_shuffles_worked_out_by_hand(shuffles: dict[str, Kernel]) -> None:
    lanes: Array = np.arange(32, dtype=np.int32)
    out = np.zeros_like(lanes)

    def shuffled(name: str, operand: int, width: int) -> Any:
        arguments = as_arguments(out, lanes, np.int32(operand), np.int32(width))
        shuffles[name].run((1, 1, 1), (32, 1, 1), arguments)
        return out.tolist()

    assert shuffled("up_int", 2, 8)[:9] == [0, 1, 0, 1, 2, 3, 4, 5, 8]
    assert shuffled("down_int", 3, 4)[:5] == [3, 1, 2, 3, 7]
    assert shuffled("index_int", -1, 8)[:9] == [7, 7, 7, 7, 7, 7, 7, 7, 15]
    assert shuffled("xor_int", 8, 8)[6:11] == [6, 7, 0, 1, 2]
    assert shuffled("down_int", 32, 32) == list(range(32))


def test_doubles_and_long_integers_keep_all_their_bits(shuffles: dict[str, Kernel]) -> None:
    for name, values in [
        ("xor_double", np.array([1.0 + 2.0**-52, -np.pi, np.nan, 5e-324] * 8)),
        ("xor_long_long", np.array([2**63 - 1, -(2**63), -1, 2**40 + 1] * 8)),
    ]:
        out = np.zeros_like(values)
        shuffles[name].run((1, 1, 1), (32, 1, 1), as_arguments(out, values, np.int32(1), np.int32(32)))
        assert out.tobytes() == values.reshape(16, 2)[:, ::-1].tobytes()


@pytest.mark.parametrize("order", ORDERS)
def test_votes(kernels: dict[str, Kernel], order: Order) -> None:
    for divisor, ballot, combined in [(1, FULL, 3), (2, 0x55555555, 2), (4, 0x11111111, 2)]:
        out: Array = np.zeros((2, 64), np.uint32)
        kernels["votes"].run((1, 1, 1), (64, 1, 1), as_arguments(out, np.int32(divisor)), order=order)
        assert out.tolist() == [[ballot] * 64, [combined] * 64]
    kernels["votes"].run((1, 1, 1), (64, 1, 1), as_arguments(out, np.int32(64)), order=order)
    assert out.tolist() == [[1] * 32 + [0] * 32, [2] * 32 + [0] * 32]


@pytest.mark.parametrize("order", ORDERS)
def test_halves_of_a_warp_shuffle_on_their_own_and_meet_again(kernels: dict[str, Kernel], order: Order) -> None:
    out: Array = np.zeros(64, np.int32)
    kernels["halves"].run((1, 1, 1), (64, 1, 1), as_arguments(out), order=order)
    warp = [3 + 100 * (lane + 16) for lane in range(16)] + [31 + 100 * lane for lane in range(16)]
    assert out.tolist() == warp * 2


@pytest.mark.parametrize("order", ORDERS)
def test_a_reduction_over_a_warp(kernels: dict[str, Kernel], order: Order) -> None:
    out: Array = np.zeros(2, np.float32)
    kernels["reduce"].run((1, 1, 1), (64, 1, 1), as_arguments(out, np.arange(64, dtype=np.float32)), order=order)
    assert out.tolist() == [496.0, 1520.0]


@pytest.mark.parametrize("order", ORDERS)
def test_syncwarp_shows_what_the_other_lanes_wrote(kernels: dict[str, Kernel], order: Order) -> None:
    out: Array = np.zeros(64, np.int32)
    kernels["syncwarp"].run((1, 1, 1), (64, 1, 1), as_arguments(out), order=order)
    assert out.tolist() == [lane ^ 1 for lane in range(64)]


@pytest.mark.parametrize("order", ORDERS)
def test_a_lane_that_goes_on_leaves_what_slower_lanes_still_read(kernels: dict[str, Kernel], order: Order) -> None:
    out: Array = np.full(32, -1, np.int32)
    kernels["fast_lane"].run((1, 1, 1), (32, 1, 1), as_arguments(out), order=order)
    assert out.tolist() == [1004] + [0] * 31


@pytest.mark.parametrize("order", ORDERS)
def test_active_lanes_are_those_at_the_same_place(kernels: dict[str, Kernel], order: Order) -> None:
    out: Array = np.zeros(64, np.uint32)
    kernels["active"].run((1, 1, 1), (32, 1, 1), as_arguments(out), order=order)
    assert out[:24].tolist() == [0x55, 0x00AAAAAA] * 4 + [0, 0x00AAAAAA] * 8
    assert out[32:56].tolist() == [0x00FFFFFF] * 24


def test_a_source_outside_of_the_mask_gives_garbage(kernels: dict[str, Kernel]) -> None:
    out: Array = np.zeros(4, np.uint32)
    kernels["undefined_source"].run((1, 1, 1), (32, 1, 1), as_arguments(out), garbage=0xAB)
    assert out.tolist() == [0, 2, 0xABABABAB, 0xABABABAB]


def test_lanes_are_numbered_through_a_block_of_two_dimensions(kernels: dict[str, Kernel]) -> None:
    out: Array = np.zeros(64, np.int32)
    kernels["layout_2d"].run((1, 1, 1), (8, 8, 1), as_arguments(out))
    assert out.tolist() == [5] * 32 + [37] * 32


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("left_before", "have"),
        ("left_while_waited_for", "names lanes that have exited"),
        ("without_itself", "executed by lane 0, which its mask fffffffe does not name"),
        ("other_mask", "do not execute it"),
        ("other_operation", "do not execute it"),
    ],
)
def test_masks_that_name_the_wrong_lanes(kernels: dict[str, Kernel], name: str, says: str, order: Order) -> None:
    out: Array = np.zeros(32, np.int32)
    with pytest.raises(KernelFault) as caught:
        kernels[name].run((1, 1, 1), (32, 1, 1), as_arguments(out), order=order)
    assert caught.value.kind == "bad lane"
    assert says in caught.value.message


def test_a_block_that_ends_within_a_warp_has_no_further_lanes(shuffles: dict[str, Kernel]) -> None:
    values: Array = np.arange(40, dtype=np.int32)
    arguments = as_arguments(np.zeros_like(values), values, np.int32(1), np.int32(32))
    with pytest.raises(KernelFault, match="mask ffffffff, lanes ffffff00 have"):
        shuffles["up_int"].run((1, 1, 1), (40, 1, 1), arguments)
