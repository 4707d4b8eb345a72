"""Streams, events and graphs over the queues."""

from __future__ import annotations

import threading
from typing import ClassVar

from cupy_backends.emulated import faults
from cupy_backends.emulated.faults import CUDARuntimeError
from cupy_backends.emulated.machine import machine
from cupy_backends.emulated.queues import Operation, Queue, Replay, WaitFor, null


class _Current(threading.local):
    def __init__(self) -> None:
        self.stack: list[Stream] = []


_current = _Current()


class Stream:
    """A queue of work; as a context manager, the current stream of this thread. Only non-blocking ones exist."""

    null: ClassVar[Stream]

    def __init__(self, *, non_blocking: bool = False) -> None:
        self._queue = Queue()
        if not non_blocking:
            raise NotImplementedError("the emulator has streams with non_blocking=True only")
        machine.start()

    def __del__(self) -> None:
        if not self._queue.pending:
            machine.queues.pop(self._queue.ptr, None)

    @property
    def ptr(self) -> int:
        return self._queue.ptr

    def __enter__(self) -> Stream:
        machine.check()
        _current.stack.append(self)
        return self

    def __exit__(self, *_: object) -> None:
        _current.stack.pop()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Stream) and other.ptr == self.ptr

    def __hash__(self) -> int:
        return self.ptr

    def __repr__(self) -> str:
        return f"<Stream {self.ptr} (device 0)>"

    def synchronize(self) -> None:
        """Runs all work queued here. Raises: CUDARuntimeError of whatever broke the device."""
        self._queue.synchronize()

    def begin_capture(self) -> None:
        if self is Stream.null:
            raise RuntimeError("cannot capture on the default (legacy) stream")
        self._queue.begin_capture()

    def end_capture(self) -> Graph:
        """Raises: CUDARuntimeError 901 when something that a capture cannot hold was tried."""
        return Graph._of(self._queue.end_capture())

    def is_capturing(self) -> bool:
        return self._queue.is_capturing()

    def record(self, event: Event | None = None) -> Event:
        event = Event() if event is None else event
        event.record(self)
        return event

    def wait_event(self, event: Event) -> None:
        """Later work here comes after what the event was last recorded behind."""
        machine.check()
        queue, count, capture = event._point
        if capture is not None:
            if queue is not self._queue:
                raise NotImplementedError("the emulator captures one stream at a time")
            return
        if self._queue.recording and queue is not None:
            self._queue.refuse_capture(faults.CAPTURE_ISOLATION)
        if queue is not None and queue is not self._queue:
            self._queue.submit(WaitFor(queue, count))


class Event:
    """A point of a stream's order, set by each `record` anew."""

    def __init__(self, block: bool = False, disable_timing: bool = False) -> None:
        machine.start()
        self._point: tuple[Queue | None, int, bool | None] = (None, 0, None)

    def record(self, stream: Stream | None = None) -> None:
        machine.check()
        queue = queue_of(stream)
        self._point = queue, queue.added, queue.recording or None

    def synchronize(self) -> None:
        """Runs the work before the recorded point, and only that."""
        machine.check()
        queue, count, capture = self._point
        if capture is not None:
            raise CUDARuntimeError(faults.CAPTURED_EVENT)
        if queue is not None:
            queue.run_until(count)
        machine.check()


class Graph:
    """Recorded work that can be queued again and again. It keeps kernels alive, and no memory."""

    _replay: Replay

    def __init__(self) -> None:
        raise NotImplementedError("a graph is made by capturing a stream")

    @classmethod
    def _of(cls, operations: list[Operation]) -> Graph:
        made = cls.__new__(cls)
        made._replay = Replay(operations)
        return made

    def launch(self, stream: Stream | None = None) -> None:
        queue_of(stream).submit(self._replay)


def get_current_stream() -> Stream:
    """The innermost stream of this thread's `with` statements, or the null stream."""
    return _current.stack[-1] if _current.stack else Stream.null


def queue_of(stream: Stream | None) -> Queue:
    """The queue of `stream`, or of the current one."""
    if stream is not None:
        return stream._queue
    stack = _current.stack
    return stack[-1]._queue if stack else null


def _null() -> Stream:
    made = Stream.__new__(Stream)
    made._queue = null
    return made


Stream.null = _null()
