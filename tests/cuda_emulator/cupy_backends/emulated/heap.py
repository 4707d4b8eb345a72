"""Device memory on the host: allocations between red zones, and the registry that finds them by address."""

from __future__ import annotations

import ctypes
import mmap
from bisect import bisect_right, insort

from . import faults
from .faults import CUDARuntimeError, RedZoneDamaged
from .machine import machine

ZONE_BYTES = 256
UNIT_BYTES = 512
FILLED_BYTES = 64 << 20
GARBAGE = 0xFF
# A NaN in each float format and no likely integer, so that reading a red zone shows as well.
_PATTERN = b"\xfb\xff" * ((ZONE_BYTES + UNIT_BYTES) // 2)
_LEFT = _PATTERN[:ZONE_BYTES]
_FLAGS = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS


class Allocation:
    """`capacity` bytes at `ptr`, of which `nbytes` are the holder's at this point of the queues' order.

    All other bytes around them, 256 and more on each side, hold a known pattern.
    """

    __slots__ = ("_end", "_mapping", "_tail", "capacity", "nbytes", "ptr")

    def __init__(self, capacity: int) -> None:
        self._mapping = mmap.mmap(-1, capacity + 2 * ZONE_BYTES, flags=_FLAGS)
        self.capacity = capacity
        self.ptr = ctypes.addressof(ctypes.c_char.from_buffer(self._mapping)) + ZONE_BYTES
        self._mapping[:ZONE_BYTES] = _LEFT
        self.occupy(capacity)

    def occupy(self, nbytes: int) -> None:
        """Gives the first `nbytes` to a new holder, who finds garbage in them."""
        if nbytes <= FILLED_BYTES:
            ctypes.memset(self.ptr, GARBAGE, nbytes)
        self.bound(nbytes)

    def bound(self, nbytes: int) -> None:
        """Makes the first `nbytes` the holder's, and red all behind them."""
        self.nbytes = nbytes
        self._end = ZONE_BYTES + nbytes
        self._tail = _PATTERN[: self.capacity - nbytes + ZONE_BYTES]
        self._mapping[self._end :] = self._tail

    def damaged_side(self) -> str | None:
        """The side, "before" or "after", on which something wrote outside the holder's bytes."""
        if self._mapping[:ZONE_BYTES] != _LEFT:
            return "before"
        if self._mapping[self._end :] != self._tail:
            return "after"
        return None

    def repair(self) -> None:
        self._mapping[:ZONE_BYTES] = _LEFT
        self._mapping[self._end :] = self._tail

    def content(self) -> bytes:
        """A copy of the holder's bytes."""
        return self._mapping[ZONE_BYTES : self._end]

    def restore(self, content: bytes) -> None:
        self._mapping[ZONE_BYTES : ZONE_BYTES + len(content)] = content

    def holds(self, address: int, nbytes: int) -> bool:
        return self.ptr <= address and address + nbytes <= self.ptr + self.nbytes

    def __repr__(self) -> str:
        return f"0x{self.ptr:x} of {self.nbytes} bytes"


class Heap:
    """All allocations of the device, found by any address in them; a fixed total that they cannot exceed."""

    def __init__(self) -> None:
        self.allocated_bytes = 0
        self._starts: list[int] = []
        self._by_start: dict[int, Allocation] = {}
        self._found: dict[bytes, Allocation | None] = {}
        self._retired: list[Allocation] = []

    def allocate(self, nbytes: int) -> Allocation:
        """Raises: CUDARuntimeError of an allocation when the device has no `nbytes` left."""
        machine.start()
        with machine.lock:
            self.unmap_retired()
            if self.allocated_bytes + nbytes > machine.total_bytes:
                raise CUDARuntimeError(faults.MEMORY_ALLOCATION)
            made = Allocation(nbytes)
            self.allocated_bytes += nbytes
            start = made.ptr - ZONE_BYTES
            insort(self._starts, start)
            self._by_start[start] = made
            self._found.clear()
        return made

    def release(self, allocation: Allocation) -> None:
        """Gives memory back; work that is queued already still finds it, as cudaFree waits for that work."""
        self.allocated_bytes -= allocation.capacity
        self._retired.append(allocation)

    def find(self, address: int) -> Allocation | None:
        """The allocation with `address` in it or in its red zones."""
        at = bisect_right(self._starts, address) - 1
        found = self._by_start[self._starts[at]] if at >= 0 else None
        return None if found is None or address >= found.ptr + found.capacity + ZONE_BYTES else found

    def find_word(self, word: bytes) -> Allocation | None:
        """As `find`, of an address as it lies in memory; quick for one that was asked for before."""
        try:
            return self._found[word]
        except KeyError:
            if len(self._found) > 65536:
                self._found.clear()
            found = self._found[word] = self.find(int.from_bytes(word, "little"))
            return found

    def bounds(self) -> tuple[int, int]:
        """The lowest address of any allocation and one beyond the highest."""
        if not self._starts:
            return 0, 0
        last = self._by_start[self._starts[-1]]
        return self._starts[0], last.ptr + last.capacity + ZONE_BYTES

    def examine(self, allocation: Allocation, culprit: str) -> None:
        """Raises: RedZoneDamaged naming `culprit`, the side and the allocation."""
        if (side := allocation.damaged_side()) is not None:
            raise RedZoneDamaged(
                faults.ILLEGAL_ADDRESS, f"{culprit} left bytes written {side} the allocation {allocation!r}"
            )

    def repair(self) -> None:
        for allocation in self._by_start.values():
            allocation.repair()

    def unmap_retired(self) -> None:
        """Forgets memory that was given back, once no queued work can reach it."""
        if not self._retired or any(queue.pending for queue in machine.queues.values()):
            return
        while self._retired:
            start = self._retired.pop().ptr - ZONE_BYTES
            self._starts.remove(start)
            del self._by_start[start]
        self._found.clear()


heap = Heap()
