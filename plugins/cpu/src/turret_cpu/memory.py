"""Memory for results, used again: a page that is new to the process costs more than the arithmetic on it."""

from __future__ import annotations

import contextlib
import ctypes
import math
import mmap
import os
import threading
from typing import Any

import numpy as np

from turret.spi import Shape

from .arrays import X

LEAST = 32 * 1024  # bytes; below, the allocator keeps its pages anyway
PIECE, HUGE_PAGE = 2**25, 2**21  # bytes
LARGE = PIECE // 4  # bytes from which on a block is a piece of its own
MOST_KEPT = 2**30  # bytes of free blocks, at most a quarter of the machine's memory

CLASSES = 8
"""Sizes of blocks between two powers of two."""

_FLOAT32 = np.dtype(np.float32)


class Blocks:
    """Free blocks by size. A block comes back when the last array that uses it is gone.

    Thread-safe. The lock is reentrant because a block may come back while this thread asks for one.
    """

    def __init__(self, most_kept: int) -> None:
        self._most_kept, self._kept = most_kept, 0
        self._free: dict[int, list[X]] = {}
        self._leases: dict[int, type[ctypes.Array[ctypes.c_char]]] = {}
        self._lock = threading.RLock()
        self._arena = Arena()

    @property
    def kept_bytes(self) -> int:
        """Bytes of the blocks that wait to be used again."""
        return self._kept

    def take(self, shape: Shape, count: int) -> X:
        """A float32 array of `shape` with `count` elements, its contents undefined."""
        size = _rounded(4 * count)
        with self._lock:
            free = self._free.get(size)
            block = free.pop() if free else self._roomy(size)
            if block is None:
                block = self._arena.cut(size)
            else:
                size = block.size
                self._kept -= size
            kind = self._leases.get(size) or self._leases.setdefault(size, self._lease(size))
        lease: Any = kind.from_buffer(block.data)
        lease.block = block
        return np.ndarray(shape, _FLOAT32, lease)

    def _roomy(self, size: int) -> X | None:
        """The smallest free block above `size` and below twice that.

        Where shapes differ from step to step, blocks of exactly the right size are made anew for ever, and pieces are
        kept by whichever block of theirs is still in use.
        """
        larger = size
        for _ in range(CLASSES):
            larger = _rounded(larger + 1)
            if free := self._free.get(larger):
                return free.pop()
        return None

    def put(self, block: X, size: int) -> None:
        """Keeps a block, unless enough are kept."""
        with self._lock:
            if self._kept + size <= self._most_kept:
                self._free.setdefault(size, []).append(block)
                self._kept += size

    def clear(self) -> None:
        """Forgets free blocks; the system has their memory back where no array uses a block of the same piece."""
        with self._lock:
            self._free.clear()
            self._kept, self._arena = 0, Arena()

    def renew_lock(self) -> None:
        """In a forked child, where the thread that held the lock may not exist."""
        self._lock = threading.RLock()

    def _lease(self, size: int) -> type[ctypes.Array[ctypes.c_char]]:
        """The type that arrays have as their base: views included, it lives as long as any of them."""
        put = self.put

        def give_back(lease: Any) -> None:
            put(lease.block, size)

        return type("Lease", (ctypes.c_char * size,), {"__del__": give_back})


class Arena:
    """New blocks, cut from large pieces of huge pages: a walk through the page table costs more than a cache miss."""

    def __init__(self) -> None:
        self._piece, self._used = np.empty(0, np.uint8), 0

    def cut(self, size: int) -> X:
        """A block of `size` bytes that nobody has used. The piece it is part of lives as long as one of its blocks.

        Raises: MemoryError.
        """
        if size >= LARGE:
            return _piece(size)
        if self._used + size > self._piece.size:
            self._piece, self._used = _piece(PIECE), 0
        block = self._piece[self._used : self._used + size]
        self._used += size
        return block


def _piece(size: int) -> X:
    """Memory from the system, aligned to huge pages and made of them where the system has any."""
    # Python's default is memory that a forked child shares: it would write into its parent's arrays.
    private: Any = {"flags": mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS} if "MAP_PRIVATE" in dir(mmap) else {}
    try:
        held = mmap.mmap(-1, size + HUGE_PAGE, **private)
    except OSError as error:
        raise MemoryError(f"unable to allocate {size} bytes for a result: {error}") from error
    if "MADV_HUGEPAGE" in dir(mmap):
        with contextlib.suppress(OSError):  # a kernel without them
            held.madvise(mmap.MADV_HUGEPAGE)
    whole = np.frombuffer(held, np.uint8)
    start = -whole.ctypes.data % HUGE_PAGE
    return whole[start : start + size]


def _rounded(size: int) -> int:
    """The next of `CLASSES` sizes between two powers of two, so that nearly equal shapes share blocks."""
    step = max(4096, (1 << size.bit_length()) // (2 * CLASSES))
    return -(-size // step) * step


def _machine_memory() -> int:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):  # not on this system
        return 4 * MOST_KEPT


BLOCKS = Blocks(min(MOST_KEPT, _machine_memory() // 4))
if "register_at_fork" in dir(os):
    os.register_at_fork(after_in_child=BLOCKS.renew_lock)


def like(x: X, shape: Shape) -> X:
    """An array of `shape` and x's dtype with undefined contents."""
    return empty(shape) if x.dtype == _FLOAT32 else np.empty(shape, x.dtype)


def empty(shape: Shape) -> X:
    """A writable C-ordered float32 array with undefined contents."""
    count = math.prod(shape)
    return np.empty(shape, _FLOAT32) if 4 * count < LEAST else BLOCKS.take(shape, count)
