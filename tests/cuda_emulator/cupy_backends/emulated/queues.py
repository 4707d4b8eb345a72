"""Streams as queues: operations run when something waits for them, and no earlier."""

from __future__ import annotations

import ctypes
import itertools
from collections import deque
from collections.abc import Iterable
from typing import Protocol

from . import faults
from .faults import CUDARuntimeError
from .heap import Allocation, heap
from .machine import machine

LONGEST = 256
_numbers = itertools.count(0x5EED0000, 0x100)


class Operation(Protocol):
    def run(self) -> None:
        """Does the work now. Raises: CUDARuntimeError, which breaks the device."""


class Queue:
    """One stream. Work recorded by a capture is kept apart and does not run."""

    __slots__ = ("_capture", "_invalid", "added", "done", "pending", "ptr")

    def __init__(self, ptr: int | None = None) -> None:
        self.ptr = next(_numbers) if ptr is None else ptr
        self.pending: deque[Operation] = deque()
        self.added = 0
        self.done = 0
        self._capture: list[Operation] | None = None
        self._invalid = False
        machine.queues[self.ptr] = self

    def submit(self, operation: Operation) -> None:
        """Queues `operation`, or records it while the stream is capturing."""
        if machine.refusal is not None:
            machine.check()
        with machine.lock:
            if self._capture is None:
                self.append(operation)
            elif self._invalid:
                raise CUDARuntimeError(faults.CAPTURE_INVALIDATED)
            else:
                self._capture.append(operation)

    def occupy(self, allocation: Allocation, nbytes: int) -> None:
        """A block changes hands at this point of the queue, or of the graph that is being captured."""
        operation = Occupy(allocation, nbytes)
        if self._capture is None:
            self.append(operation)
        else:
            self._capture.append(operation)

    def append(self, operation: Operation) -> None:
        """Queues `operation`, whether the stream is capturing or not."""
        self.pending.append(operation)
        self.added += 1
        if len(self.pending) > LONGEST:
            self.run_until(self.added)

    def run_until(self, count: int) -> None:
        """Runs until `count` of all operations ever queued are done; a fault breaks the device."""
        with machine.lock:
            try:
                while self.done < count and self.pending:
                    operation = self.pending.popleft()
                    self.done += 1
                    operation.run()
            except CUDARuntimeError as fault:
                machine.fail(fault)

    def synchronize(self) -> None:
        """Raises: CUDARuntimeError of anything that went wrong before; 900 while capturing."""
        machine.check()
        self.refuse_capture()
        self.run_until(self.added)
        machine.check()

    def drop(self) -> None:
        self.pending.clear()
        self.done = self.added
        self._capture = None
        self._invalid = False

    def begin_capture(self) -> None:
        machine.check()
        if self._capture is not None:
            raise CUDARuntimeError(faults.ILLEGAL_STATE)
        self._capture = []

    def end_capture(self) -> list[Operation]:
        machine.check()
        if self._capture is None:
            raise CUDARuntimeError(faults.ILLEGAL_STATE)
        recorded, invalid = self._capture, self._invalid
        self._capture, self._invalid = None, False
        if invalid:
            raise CUDARuntimeError(faults.CAPTURE_INVALIDATED)
        return recorded

    def is_capturing(self) -> bool:
        machine.check()
        if self._invalid:
            raise RuntimeError("the stream was capturing, but an error ended the validity of the capture")
        return self._capture is not None

    @property
    def recording(self) -> bool:
        return self._capture is not None

    def refuse_capture(self, status: int = faults.CAPTURE_UNSUPPORTED) -> None:
        """What a capture cannot hold makes it invalid. Raises: CUDARuntimeError of `status` while capturing."""
        if self._capture is not None:
            self._invalid = True
            raise CUDARuntimeError(status)


class WaitFor:
    """Work of another stream up to a point comes first, and nothing of it beyond."""

    __slots__ = ("_count", "_queue")

    def __init__(self, queue: Queue, count: int) -> None:
        self._queue = queue
        self._count = count

    def run(self) -> None:
        self._queue.run_until(self._count)


class Occupy:
    """A block changes hands: its new holder finds garbage."""

    __slots__ = ("_allocation", "_nbytes")

    def __init__(self, allocation: Allocation, nbytes: int) -> None:
        self._allocation = allocation
        self._nbytes = nbytes

    def run(self) -> None:
        self._allocation.occupy(self._nbytes)


class WriteBytes:
    """Host bytes, taken when the copy was asked for, go to the device."""

    __slots__ = ("_content", "_to")

    def __init__(self, to: int, content: bytes) -> None:
        self._to = to
        self._content = content

    def run(self) -> None:
        allocation = inside(self._to, len(self._content), "a copy from the host")
        ctypes.memmove(self._to, self._content, len(self._content))
        heap.examine(allocation, "a copy from the host")


class ReadBytes:
    """Device bytes go to host memory, which must still be there when the copy runs."""

    __slots__ = ("_from", "_nbytes", "_to")

    def __init__(self, to: int, source: int, nbytes: int) -> None:
        self._to = to
        self._from = source
        self._nbytes = nbytes

    def run(self) -> None:
        heap.examine(inside(self._from, self._nbytes, "a copy to the host"), "something before a copy to the host")
        ctypes.memmove(self._to, self._from, self._nbytes)


class CopyBytes:
    """Device bytes go to another place of the device."""

    __slots__ = ("_from", "_nbytes", "_to")

    def __init__(self, to: int, source: int, nbytes: int) -> None:
        self._to = to
        self._from = source
        self._nbytes = nbytes

    def run(self) -> None:
        inside(self._from, self._nbytes, "a copy on the device")
        allocation = inside(self._to, self._nbytes, "a copy on the device")
        ctypes.memmove(self._to, self._from, self._nbytes)
        heap.examine(allocation, "a copy on the device")


class FillBytes:
    """Each of a range of device bytes becomes `value`."""

    __slots__ = ("_nbytes", "_to", "_value")

    def __init__(self, to: int, value: int, nbytes: int) -> None:
        self._to = to
        self._value = value
        self._nbytes = nbytes

    def run(self) -> None:
        allocation = inside(self._to, self._nbytes, "a fill")
        ctypes.memset(self._to, self._value, self._nbytes)
        heap.examine(allocation, "a fill")


class Replay:
    """All operations of a graph, in the order in which they were recorded."""

    __slots__ = ("_operations",)

    def __init__(self, operations: Iterable[Operation]) -> None:
        self._operations = tuple(operations)

    def run(self) -> None:
        for operation in self._operations:
            operation.run()


def inside(address: int, nbytes: int, culprit: str) -> Allocation:
    """The allocation that holds all of a range. Raises: CUDARuntimeError 700 when none does."""
    allocation = heap.find(address)
    if allocation is None or not allocation.holds(address, nbytes):
        raise CUDARuntimeError(
            faults.ILLEGAL_ADDRESS, f"{culprit} reaches 0x{address:x} to 0x{address + nbytes:x}, in {allocation!r}"
        )
    return allocation


def drain() -> None:
    """Runs all queued work, newest streams first; captures go on."""
    for queue in reversed(list(machine.queues.values())):
        queue.run_until(queue.added)


def synchronize_device() -> None:
    """Raises: CUDARuntimeError of anything that went wrong before; 900 while any stream is capturing."""
    machine.check()
    for queue in list(machine.queues.values()):
        queue.refuse_capture()
    drain()
    machine.check()


null = Queue(0)
