"""Memory as CuPy hands it out: pointers that keep their memory, and a pool in stream order."""

from __future__ import annotations

import ctypes
import gc
from collections import defaultdict, deque
from collections.abc import Callable

from cupy_backends.emulated import faults
from cupy_backends.emulated.faults import CUDARuntimeError
from cupy_backends.emulated.heap import UNIT_BYTES, Allocation, heap
from cupy_backends.emulated.machine import machine
from cupy_backends.emulated.queues import CopyBytes, FillBytes, ReadBytes, WriteBytes, drain

from .device import Device
from .stream import Stream, queue_of

Host = int | ctypes.c_void_p
# A block serves one size only, where CuPy cuts large ones: sizes that come once must not pile up.
MOST_KEPT = 16 << 20


class OutOfMemoryError(MemoryError):
    """Neither the device nor the limit of the pool has this many bytes left."""

    def __init__(self, size: int, total: int, limit: int = 0) -> None:
        so_far = f"allocated so far: {total:,} bytes"
        text = f"({so_far})." if limit == 0 else f"({so_far}, limit set to: {limit:,} bytes)."
        super().__init__(f"Out of memory allocating {size:,} bytes {text}")
        self._arguments = size, total, limit

    def __reduce__(self) -> tuple[type[OutOfMemoryError], tuple[int, int, int]]:
        return type(self), self._arguments


class Memory:
    """Memory of the device that is given back when nothing refers to it."""

    __slots__ = ("_allocation", "device_id", "ptr", "size")

    def __init__(self, size: int) -> None:
        self._allocation: Allocation | None = None
        self.device_id = 0
        self.ptr = 0
        self.size = size
        if size > 0:
            self._allocation = heap.allocate(size)
            self.ptr = self._allocation.ptr

    @property
    def device(self) -> Device:
        return Device(self.device_id)

    @property
    def allocation(self) -> Allocation:
        assert self._allocation is not None, "memory of no bytes has no allocation"
        return self._allocation

    def __del__(self) -> None:
        if self._allocation is not None:
            heap.release(self._allocation)


Bins = dict[int, list[Memory]]
Freed = deque[tuple[Memory, Bins]]


class PooledMemory:
    """Memory of a pool that goes back to the pool, for the same stream, when nothing refers to it."""

    __slots__ = ("_bins", "_freed", "_memory", "_owned", "device_id", "ptr", "size")

    def __init__(self, memory: Memory, bins: Bins, freed: Freed, owned: set[Memory]) -> None:
        self._memory = memory
        self._bins = bins
        self._freed = freed
        # without it the collector would take this and the memory for garbage together, and finalize both
        self._owned = owned
        self.device_id = 0
        self.ptr = memory.ptr
        self.size = memory.size

    @property
    def device(self) -> Device:
        return Device(self.device_id)

    def __del__(self) -> None:
        self._freed.append((self._memory, self._bins))


class UnownedMemory:
    """Memory that belongs to somebody else, whom it keeps alive."""

    __slots__ = ("_owner", "device_id", "ptr", "size")

    def __init__(self, ptr: int, size: int, owner: object, device_id: int = -1) -> None:
        self.ptr, self.size, self._owner, self.device_id = ptr, size, owner, max(device_id, 0)

    @property
    def device(self) -> Device:
        return Device(self.device_id)


class MemoryPointer:
    """An address within memory that it keeps alive."""

    __slots__ = ("device_id", "mem", "ptr")

    def __init__(self, mem: Memory | PooledMemory | UnownedMemory, offset: int) -> None:
        if mem.ptr == 0 and offset != 0:
            raise AssertionError("memory of no bytes has no address beyond its start")
        self.mem = mem
        self.ptr = mem.ptr + offset
        self.device_id = 0

    @property
    def device(self) -> Device:
        return Device(self.device_id)

    def __int__(self) -> int:
        return self.ptr

    def __add__(self, offset: int) -> MemoryPointer:
        return MemoryPointer(self.mem, self.ptr - self.mem.ptr + offset)

    __radd__ = __add__

    def __sub__(self, offset: int) -> MemoryPointer:
        return self + -offset

    def __repr__(self) -> str:
        return f"<MemoryPointer 0x{self.ptr:x} device=0>"

    def copy_from_host_async(self, mem: Host, size: int, stream: Stream | None = None) -> None:
        """Copies `size` bytes at the host address `mem`, as they are now."""
        queue = queue_of(stream)
        if queue.is_capturing():
            raise RuntimeError("the current stream is capturing, so H2D transfers are disallowed")
        if size > 0:
            queue.submit(WriteBytes(self.ptr, ctypes.string_at(_address(mem), size)))

    def copy_to_host_async(self, mem: Host, size: int, stream: Stream | None = None) -> None:
        """Copies `size` bytes to the host address `mem` when the stream gets there."""
        queue = queue_of(stream)
        if queue.is_capturing():
            raise RuntimeError("the current stream is capturing, so D2H transfers are disallowed")
        if size > 0:
            queue.submit(ReadBytes(_address(mem), self.ptr, size))

    def copy_from_device_async(self, src: MemoryPointer, size: int, stream: Stream | None = None) -> None:
        if size > 0:
            queue_of(stream).submit(CopyBytes(self.ptr, src.ptr, size))

    def memset_async(self, value: int, size: int, stream: Stream | None = None) -> None:
        if size > 0:
            queue_of(stream).submit(FillBytes(self.ptr, value, size))


class MemoryPool:
    """Keeps freed memory for the stream that was current when it was asked for, and hands it out again at once."""

    def __init__(self, allocator: Callable[[int], MemoryPointer] | None = None) -> None:
        self._allocator = allocator or (lambda size: MemoryPointer(Memory(size), 0))
        self._freed: Freed = deque()
        self._owned: set[Memory] = set()
        self._streams: defaultdict[int, Bins] = defaultdict(lambda: defaultdict(list))
        self._used = 0
        self._total = 0
        self._limit = 0

    def malloc(self, size: int) -> MemoryPointer:
        """At least `size` bytes of garbage. Raises: OutOfMemoryError."""
        machine.start()
        if size < 0:
            raise OverflowError("can't convert negative value to size_t")
        if size == 0:
            return MemoryPointer(Memory(0), 0)
        rounded = -(-size // UNIT_BYTES) * UNIT_BYTES
        with machine.lock:
            self._settle()
            queue = queue_of(None)
            bins = self._streams[queue.ptr]
            kept = bins[rounded]
            if not kept and self._total - self._used > MOST_KEPT:
                self.free_all_blocks()
            memory = kept.pop() if kept else self._obtain(rounded)
            queue.occupy(memory.allocation, size)
            self._used += rounded
        return MemoryPointer(PooledMemory(memory, bins, self._freed, self._owned), 0)

    def used_bytes(self) -> int:
        """Bytes in the hands of users."""
        with machine.lock:
            self._settle()
            return self._used

    def total_bytes(self) -> int:
        """Bytes taken from the device."""
        return self._total

    def set_limit(self, size: int | None = None, fraction: float | None = None) -> None:
        """Lets the pool take at most `size` bytes, or `fraction` of the device; 0 or nothing lifts the limit."""
        if size is not None and fraction is not None:
            raise ValueError("size and fraction cannot be specified at one time")
        if fraction is not None:
            if not 0 <= fraction <= 1:
                raise ValueError(f"memory limit fraction out of range: {fraction}")
            size = int(fraction * machine.total_bytes)
        if size is not None and size < 0:
            raise ValueError(f"memory limit size out of range: {size}")
        self._limit = size or 0

    def free_all_blocks(self, stream: Stream | None = None) -> None:
        """Gives memory that nobody uses back to the device, which waits for all queued work."""
        drain()
        with machine.lock:
            self._settle()
            for bins in list(self._streams.values()) if stream is None else [self._streams[stream.ptr]]:
                given_back = [memory for kept in bins.values() for memory in kept]
                self._total -= sum(memory.size for memory in given_back)
                self._owned.difference_update(given_back)
                del given_back
                bins.clear()
            heap.unmap_retired()

    def _settle(self) -> None:
        while self._freed:
            memory, bins = self._freed.popleft()
            bins[memory.size].append(memory)
            self._used -= memory.size
            try:
                heap.examine(memory.allocation, "something before it was freed")
            except CUDARuntimeError as fault:
                machine.fail(fault)

    def _obtain(self, size: int) -> Memory:
        for attempt in (self.free_all_blocks, gc.collect, None):
            if not self._limit or self._total + size <= self._limit:
                try:
                    memory = self._allocator(size).mem
                except CUDARuntimeError as fault:
                    if fault.status != faults.MEMORY_ALLOCATION:
                        raise
                else:
                    self._total += size
                    self._owned.add(memory)
                    return memory
            if attempt is None:
                break
            attempt()
            self.free_all_blocks()
        raise OutOfMemoryError(size, self._total, self._limit)


def _address(host: Host) -> int:
    return host if isinstance(host, int) else host.value or 0
