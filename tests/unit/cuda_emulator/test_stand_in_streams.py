from __future__ import annotations

import pickle
import threading
from typing import Any

import cupy
import numpy as np
import pytest
from cupy.cuda import Event, Graph, MemoryPointer, MemoryPool, Stream
from cupy.cuda.runtime import CUDARuntimeError

pytestmark = pytest.mark.usefixtures("device")


def read_later(pointer: MemoryPointer, stream: Stream) -> Any:
    out = np.zeros(4, np.uint8)
    pointer.copy_to_host_async(out.ctypes.data, 4, stream)
    return out


def test_work_runs_when_something_waits_and_no_earlier(pool: MemoryPool, stream: Stream) -> None:
    pointer = pool.malloc(4)
    pointer.memset_async(1, 4, stream)
    out = read_later(pointer, stream)
    assert not out.any()
    stream.synchronize()
    assert (out == 1).all()


def test_a_long_queue_runs_by_itself(pool: MemoryPool, stream: Stream) -> None:
    out = read_later(pool.malloc(4), stream)
    for _ in range(300):
        pool.malloc(4).memset_async(1, 4, stream)
    assert (out == 0xFF).all()


def test_another_stream_sees_old_bytes_unless_it_waits(pool: MemoryPool, stream: Stream) -> None:
    other = Stream(non_blocking=True)
    pointer = pool.malloc(4)
    pointer.memset_async(1, 4, stream)
    stream.synchronize()
    pointer.memset_async(2, 4, stream)
    careless = read_later(pointer, other)
    other.synchronize()
    event = stream.record()
    pointer.memset_async(3, 4, stream)
    other.wait_event(event)
    careful = read_later(pointer, other)
    other.synchronize()
    assert (careless[0], careful[0]) == (1, 2)
    last = read_later(pointer, stream)
    cupy.cuda.runtime.deviceSynchronize()
    assert last[0] == 3


def test_an_event_waits_for_what_was_before_it(pool: MemoryPool, stream: Stream) -> None:
    event = Event()
    event.synchronize()
    pointer = pool.malloc(4)
    pointer.memset_async(1, 4, stream)
    before = read_later(pointer, stream)
    event.record(stream)
    after = read_later(pointer, stream)
    event.synchronize()
    assert before.all() and not after.any()
    event.record(stream)
    event.synchronize()
    assert after.all()


def test_a_wait_keeps_to_the_record_it_was_asked_for(pool: MemoryPool, stream: Stream) -> None:
    other = Stream(non_blocking=True)
    pointer = pool.malloc(4)
    early = read_later(pointer, stream)
    event = stream.record()
    other.wait_event(event)
    late = read_later(pointer, stream)
    stream.record(event)
    other.synchronize()
    assert early.all() and not late.any()


def test_the_current_stream_belongs_to_the_thread(pool: MemoryPool, stream: Stream) -> None:
    assert cupy.cuda.get_current_stream() is stream
    seen: list[object] = []
    thread = threading.Thread(target=lambda: seen.append(cupy.cuda.get_current_stream()))
    thread.start()
    thread.join()
    assert seen == [Stream.null] and Stream.null.ptr == 0
    with Stream(non_blocking=True) as inner:
        assert cupy.cuda.get_current_stream() is inner != stream
    assert cupy.cuda.get_current_stream() is stream
    pointer = pool.malloc(4)
    pointer.memset_async(1, 4)
    out = read_later(pointer, stream)
    stream.synchronize()
    assert out[0] == 1


def test_a_fault_surfaces_at_the_next_wait_and_stays(pool: MemoryPool, stream: Stream) -> None:
    pool.malloc(4).memset_async(0, 5000, stream)
    pointer = pool.malloc(4)
    calls = (
        stream.synchronize,
        stream.synchronize,
        cupy.cuda.runtime.deviceSynchronize,
        cupy.cuda.runtime.memGetInfo,
        Event,
        lambda: pool.malloc(4),
        lambda: Stream(non_blocking=True),
        lambda: pointer.memset_async(0, 4),
        lambda: cupy.cuda.Device(0).use(),
    )
    for call in calls:
        with pytest.raises(CUDARuntimeError, match=r"^cudaErrorIllegalAddress: ") as caught:
            call()
        assert caught.value.status == 700
    copy = pickle.loads(pickle.dumps(caught.value))
    assert (copy.status, str(copy)) == (700, str(caught.value))
    cupy.emulated.reset()
    pointer.memset_async(0, 4)
    stream.synchronize()


def captured_add(pool: MemoryPool, stream: Stream) -> tuple[MemoryPointer, Graph]:
    pointer = pool.malloc(8)
    pointer.memset_async(1, 8, stream)
    stream.begin_capture()
    assert stream.is_capturing()
    pointer.copy_from_device_async(pointer + 4, 4, stream)
    (pointer + 4).memset_async(2, 4, stream)
    graph = stream.end_capture()
    assert not stream.is_capturing()
    return pointer, graph


def test_a_capture_records_and_a_launch_runs(pool: MemoryPool, stream: Stream) -> None:
    pointer, graph = captured_add(pool, stream)
    pointer.memset_async(3, 4, stream)
    seen = []
    for _ in range(3):
        seen.append(read_later(pointer, stream))
        graph.launch(stream)
    stream.synchronize()
    assert [int(each[0]) for each in seen] == [3, 1, 2]


def test_a_graph_runs_on_any_stream_and_on_the_current_one_by_default(pool: MemoryPool, stream: Stream) -> None:
    pointer, graph = captured_add(pool, stream)
    stream.synchronize()
    with Stream(non_blocking=True) as other:
        graph.launch()
        out = read_later(pointer + 4, other)
        other.synchronize()
    assert out[0] == 2
    with pytest.raises(NotImplementedError):
        Graph()


def test_a_wait_spoils_a_capture(stream: Stream) -> None:
    for wait in (stream.synchronize, cupy.cuda.runtime.deviceSynchronize):
        stream.begin_capture()
        with pytest.raises(CUDARuntimeError, match="cudaErrorStreamCaptureUnsupported: ") as caught:
            wait()
        assert caught.value.status == 900
        with pytest.raises(RuntimeError, match="validity"):
            stream.is_capturing()
        with pytest.raises(CUDARuntimeError, match="cudaErrorStreamCaptureInvalidated") as caught:
            stream.end_capture()
        assert caught.value.status == 901
        stream.synchronize()


def test_a_capture_takes_no_copies_from_or_to_the_host(pool: MemoryPool, stream: Stream) -> None:
    pointer = pool.malloc(4)
    host = np.zeros(4, np.uint8)
    stream.begin_capture()
    for copy in (pointer.copy_from_host_async, pointer.copy_to_host_async):
        with pytest.raises(RuntimeError, match=r"is capturing, so .2. transfers are disallowed") as caught:
            copy(host.ctypes.data, 4, stream)
        assert type(caught.value) is RuntimeError
    stream.end_capture()


def test_a_capture_cannot_depend_on_work_outside_it(stream: Stream) -> None:
    event = Stream(non_blocking=True).record()
    stream.begin_capture()
    with pytest.raises(CUDARuntimeError, match="cudaErrorStreamCaptureIsolation"):
        stream.wait_event(event)
    with pytest.raises(CUDARuntimeError):
        stream.end_capture()
    stream.begin_capture()
    event = stream.record()
    with pytest.raises(CUDARuntimeError, match="cudaErrorCapturedEvent"):
        event.synchronize()
    stream.end_capture()


def test_captures_begin_and_end_in_turn(stream: Stream) -> None:
    with pytest.raises(CUDARuntimeError, match="cudaErrorIllegalState"):
        stream.end_capture()
    stream.begin_capture()
    with pytest.raises(CUDARuntimeError, match="cudaErrorIllegalState"):
        stream.begin_capture()
    stream.end_capture()
    with pytest.raises(RuntimeError, match="default"):
        Stream.null.begin_capture()
    with pytest.raises(NotImplementedError, match="non_blocking"):
        Stream(non_blocking=False)


def test_a_graph_keeps_no_memory(pool: MemoryPool, stream: Stream) -> None:
    pointer, graph = captured_add(pool, stream)
    where = pointer.ptr
    del pointer
    assert pool.used_bytes() == 0
    stranger = pool.malloc(8)
    assert stranger.ptr == where
    stranger.memset_async(9, 8, stream)
    graph.launch(stream)
    out = read_later(stranger + 4, stream)
    stream.synchronize()
    assert out[0] == 2


def test_a_graph_gives_a_block_to_one_holder_after_another_at_every_launch(pool: MemoryPool, stream: Stream) -> None:
    kept = pool.malloc(4)
    stream.begin_capture()
    wide = pool.malloc(500)
    wide.memset_async(1, 500, stream)
    where = wide.ptr
    del wide
    narrow = pool.malloc(100)
    kept.copy_from_device_async(narrow + 96, 4, stream)
    narrow.memset_async(2, 100, stream)
    graph = stream.end_capture()
    assert narrow.ptr == where
    for _ in range(2):
        graph.launch(stream)
        out = read_later(kept, stream)
        stream.synchronize()
        assert (out == 0xFF).all()
