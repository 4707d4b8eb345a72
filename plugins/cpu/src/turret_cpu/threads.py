"""The one thread pool of this backend: a few workers that run shares of a kernel beside the calling thread."""

from __future__ import annotations

import ctypes
import os
import struct
import threading
import time
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import numpy as np
import numpy.typing as npt

from .kernels.compiler import Kernel
from .kernels.workers import BOX, POSTED, alone, launch, serve, wait

F32 = npt.NDArray[np.float32]
I64 = npt.NDArray[np.int64]

# How often an idle worker looks for the next call before it sleeps, some 16 ns a look on a quiet machine: longer than
# the gap between two operations of a training step, since waking a thread costs as much as a small operation, and
# short enough to give the core back between two steps of anything else.
PATIENCE = 100_000
MOST = 16  # threads: the models of this size have no work for more
NAP = 50e-6  # seconds between two looks at a worker that has lost its core
FOREVER = 2**62  # looks

_char = ctypes.c_char
_FLOAT, _WORD = struct.Struct("d"), struct.Struct("q")


class _Worker:
    """One thread that runs one share of each call. It watches a short while for the next, then sleeps."""

    def __init__(self, box: I64, job: I64) -> None:
        self._box, self._job = box, job
        self._wake: SimpleQueue[None] = SimpleQueue()
        self._asleep = False
        threading.Thread(target=self._live, name="turret-cpu", daemon=True).start()

    def rouse(self) -> None:
        """Wakes it where it sleeps; a wake-up too many does no harm."""
        if self._asleep:
            self._wake.put(None)

    def _live(self) -> None:
        while True:
            serve(self._box, self._job, PATIENCE)
            self._asleep = True
            if self._box[0] != POSTED:
                self._wake.get()
            self._asleep = False


class Pool:
    """Runs a kernel's shares on all cores. The split is fixed, so results do not depend on who runs what when.

    Two Python threads may call at once: the second finds the workers taken and runs every share itself.
    """

    # Nanoseconds of work below which a second core costs more than it gives.
    WORTH = 12_000

    def __init__(self, parts: int) -> None:
        self.parts = parts
        self._workers: list[_Worker] = []
        self._boxes, self._job = np.zeros((parts - 1, BOX), np.int64), np.zeros(BOX, np.int64)
        self._free = threading.Lock()
        self._local = threading.local()

    def run(self, kernel: Kernel, work: float, *operands: npt.NDArray[Any] | int | float) -> None:
        """Every share of `kernel`; `work` is its size in nanoseconds of one core.

        An array travels as its address (C-ordered, writable, not empty), an int as itself, a float as its 64 bits.
        """
        address, words = kernel.address, np.array([_word(x) for x in operands], np.int64)
        shares = self.shares(work)
        if shares > 1 and self._free.acquire(blocking=False):
            try:
                self._share_out(address, words, shares)
            finally:
                self._free.release()
        else:
            alone(address, words, shares)

    def shares(self, work: float) -> int:
        """Into how many shares work of this size is cut: twice the cores where that is not too fine."""
        if work < self.WORTH or self.parts == 1:
            return 1
        return self.parts if work < 40 * self.WORTH * self.parts else 2 * self.parts

    def scratch(self, size: int) -> F32:
        """A row for each share of `size` or more float32, the calling thread's until it asks again."""
        kept: F32 | None = getattr(self._local, "kept", None)
        if kept is None or kept.shape[1] < size:
            kept = self._local.kept = np.zeros((2 * self.parts, -(-size // 1024) * 1024 + 16), np.float32)
        return kept

    def _share_out(self, address: int, words: I64, shares: int) -> None:
        if not self._workers:
            self._workers = [_Worker(box, self._job) for box in self._boxes]
        for worker in self._workers:
            worker.rouse()
        done = False
        try:
            done = launch(address, words, shares, self._job, self._boxes, PATIENCE)
        finally:
            if not done:
                self._settle()

    def _settle(self) -> None:
        """Returns when no worker touches the operands any more, signals or not."""
        try:
            while not wait(self._boxes, 0):
                time.sleep(NAP)
        finally:
            # A signal has ended the naps, and leaving now would free memory that a worker writes. The last look is
            # machine code, which no signal ends.
            wait(self._boxes, FOREVER)

    def forget_workers(self) -> None:
        """In a forked child, where no other thread exists: the next call starts new ones."""
        self._workers, self._free = [], threading.Lock()
        self._boxes, self._job = np.zeros_like(self._boxes), np.zeros_like(self._job)


def address_of(x: npt.NDArray[Any]) -> int:
    """Where the elements of a writable, C-ordered, non-empty array start."""
    return ctypes.addressof(_char.from_buffer(x.data))


def float_word(x: float) -> int:
    """The bits of a float64 as int64."""
    return int(_WORD.unpack(_FLOAT.pack(x))[0])


def _word(operand: npt.NDArray[Any] | int | float) -> int:
    if isinstance(operand, np.ndarray):
        return address_of(operand)
    return float_word(operand) if isinstance(operand, float) else operand


def usable_cores() -> int:
    """Physical cores this process may use, within its container's share."""
    allowed: Any = os.sched_getaffinity(0) if "sched_getaffinity" in dir(os) else range(os.cpu_count() or 1)
    cores = {_siblings(cpu) for cpu in allowed}
    return max(1, min(len(cores), _quota(), MOST))


def _siblings(cpu: int) -> str:
    try:
        return Path(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list").read_text().strip()
    except OSError:
        return str(cpu)


def _quota() -> int:
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
        return MOST if quota == "max" else -(-int(quota) // int(period))
    except (OSError, ValueError):
        return MOST


POOL = Pool(usable_cores())
if "register_at_fork" in dir(os):
    os.register_at_fork(after_in_child=POOL.forget_workers)
