from __future__ import annotations

import ctypes
import gc
from typing import Any

import cupy
import numpy as np
import pytest
from cupy.cuda import MemoryPointer, MemoryPool, Stream
from cupy.cuda.memory import OutOfMemoryError
from cupy.cuda.runtime import CUDARuntimeError

pytestmark = pytest.mark.usefixtures("device")


def read(pointer: MemoryPointer, nbytes: int, stream: Stream) -> Any:
    """The bytes as they are once all work of the stream is done."""
    out = np.zeros(nbytes, np.uint8)
    pointer.copy_to_host_async(out.ctypes.data, nbytes, stream)
    stream.synchronize()
    return out


def write(pointer: MemoryPointer, content: bytes, stream: Stream) -> None:
    buffer = ctypes.create_string_buffer(content, len(content))
    pointer.copy_from_host_async(ctypes.addressof(buffer), len(content), stream)


def test_sizes_are_rounded_as_cupy_rounds_them(pool: MemoryPool) -> None:
    kept = [pool.malloc(size) for size in (0, 1, 512, 513)]
    assert [each.mem.size for each in kept] == [0, 512, 512, 1024]
    assert kept[0].ptr == 0
    assert pool.used_bytes() == pool.total_bytes() == 2048
    with pytest.raises(OverflowError):
        pool.malloc(-1)


def test_a_pointer_moves_within_its_memory(pool: MemoryPool) -> None:
    pointer = pool.malloc(100)
    assert (pointer + 8).ptr == (8 + pointer).ptr == pointer.ptr + 8 == int(pointer) + 8
    assert (pointer + 8 - 8).ptr == pointer.ptr
    assert (pointer + 8).mem is pointer.mem
    assert pointer.device.id == 0
    with pytest.raises(AssertionError):
        pool.malloc(0) + 1


def test_memory_starts_as_garbage_and_again_when_it_is_reused(pool: MemoryPool, stream: Stream) -> None:
    first = pool.malloc(600)
    assert (read(first, 600, stream) == 0xFF).all()
    first.memset_async(7, 600, stream)
    where = first.ptr
    del first
    second = pool.malloc(700)
    assert second.ptr == where
    assert (read(second, 700, stream) == 0xFF).all()


def test_a_reused_block_still_serves_the_work_queued_before(pool: MemoryPool, stream: Stream) -> None:
    first = pool.malloc(8)
    first.memset_async(7, 8, stream)
    out = np.zeros(8, np.uint8)
    first.copy_to_host_async(out.ctypes.data, 8, stream)
    del first
    pool.malloc(8).memset_async(9, 8, stream)
    stream.synchronize()
    assert (out == 7).all()


def test_a_block_goes_back_to_the_stream_that_was_current(pool: MemoryPool) -> None:
    with Stream(non_blocking=True) as one:
        where = pool.malloc(8).ptr
    with Stream(non_blocking=True):
        assert pool.malloc(8).ptr != where
    with one:
        assert pool.malloc(8).ptr == where


def test_copies_carry_bytes_in_stream_order(pool: MemoryPool, stream: Stream) -> None:
    content = bytes(range(200))
    source, target = pool.malloc(200), pool.malloc(200)
    write(source, content, stream)
    target.memset_async(3, 200, stream)
    (target + 10).copy_from_device_async(source + 20, 100, stream)
    want = bytearray([3] * 200)
    want[10:110] = content[20:120]
    assert read(target, 200, stream).tobytes() == bytes(want)


def test_host_bytes_are_taken_at_the_call_and_given_at_the_wait(pool: MemoryPool, stream: Stream) -> None:
    host = np.full(16, 5, np.uint8)
    pointer = pool.malloc(16)
    pointer.copy_from_host_async(host.ctypes.data, 16, stream)
    host[:] = 6
    pointer.copy_to_host_async(host.ctypes.data, 16, stream)
    assert (host == 6).all()
    stream.synchronize()
    assert (host == 5).all()


@pytest.mark.parametrize(("offset", "side"), [(-1, "before"), (100, "after"), (500, "after"), (600, "after")])
def test_a_write_outside_an_allocation_is_found(pool: MemoryPool, stream: Stream, offset: int, side: str) -> None:
    pointer = pool.malloc(100)
    stream.synchronize()
    ctypes.memset(pointer.ptr + offset, 1, 1)
    pointer.memset_async(0, 4, stream)
    with pytest.raises(cupy.emulated.RedZoneDamaged, match=f"a fill left bytes written {side} the allocation"):
        stream.synchronize()


def test_a_write_outside_an_allocation_is_found_when_it_is_freed(pool: MemoryPool, stream: Stream) -> None:
    pointer = pool.malloc(100)
    stream.synchronize()
    ctypes.memset(pointer.ptr + 100, 1, 1)
    del pointer
    pool.used_bytes()
    with pytest.raises(cupy.emulated.RedZoneDamaged, match="freed left bytes written after"):
        stream.synchronize()
    cupy.emulated.reset()
    pool.malloc(100).memset_async(0, 100, stream)
    stream.synchronize()


def test_a_copy_beyond_an_allocation_is_an_illegal_access(pool: MemoryPool, stream: Stream) -> None:
    pool.malloc(100).memset_async(0, 101, stream)
    with pytest.raises(CUDARuntimeError, match=r"^cudaErrorIllegalAddress: .*a fill reaches") as caught:
        stream.synchronize()
    assert caught.value.status == 700


def test_more_than_the_device_has_is_refused(pool: MemoryPool, stream: Stream) -> None:
    gc.collect()
    free, whole = cupy.cuda.Device(0).mem_info
    cupy.emulated.set_total_memory(whole - free + (1 << 20))  # what earlier tests of this process hold, and 1 MiB
    free, total = cupy.cuda.Device(0).mem_info
    assert free == 1 << 20 <= total
    kept = pool.malloc(free // 2 // 512 * 512)
    with pytest.raises(OutOfMemoryError, match=r"^Out of memory allocating 1,048,576 bytes \(allocated so far: ") as e:
        pool.malloc(1 << 20)
    assert isinstance(e.value, MemoryError) and f"{pool.total_bytes():,} bytes)." in str(e.value)
    assert cupy.cuda.runtime.memGetInfo() == (free - kept.mem.size, total)
    with pytest.raises(CUDARuntimeError, match="cudaErrorMemoryAllocation: out of memory") as caught:
        cupy.cuda.Memory(1 << 20)
    assert caught.value.status == 2


def test_the_limit_of_a_pool_holds_and_free_blocks_make_room(pool: MemoryPool, stream: Stream) -> None:
    pool.set_limit(size=2048)
    first = pool.malloc(2048)
    with pytest.raises(OutOfMemoryError, match="limit set to: 2,048 bytes"):
        pool.malloc(1)
    first.memset_async(1, 2048, stream)
    del first
    assert (pool.used_bytes(), pool.total_bytes()) == (0, 2048)
    second = pool.malloc(1)
    assert (pool.used_bytes(), pool.total_bytes()) == (512, 512)
    pool.free_all_blocks()
    assert pool.total_bytes() == 512
    del second
    pool.free_all_blocks()
    assert pool.total_bytes() == 0
    pool.set_limit()
    assert pool.malloc(4096).mem.size == 4096
    pool.set_limit(fraction=0.5)
    for bad in ({"size": -1}, {"fraction": 2.0}, {"size": 1, "fraction": 0.5}):
        with pytest.raises(ValueError, match=r"limit|one time"):
            pool.set_limit(**bad)


def test_memory_that_was_given_back_is_no_longer_there(pool: MemoryPool, stream: Stream) -> None:
    lost = pool.malloc(8)
    address = lost.ptr
    source = pool.malloc(1024)
    stream.begin_capture()
    source.copy_from_device_async(lost, 8, stream)
    graph = stream.end_capture()
    del lost
    pool.free_all_blocks()
    graph.launch(stream)
    with pytest.raises(CUDARuntimeError, match=f"reaches 0x{address:x}"):
        stream.synchronize()
