"""The state of the one emulated device: whether it answers, what broke it, its queues."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

from . import faults
from .faults import CUDARuntimeError

if TYPE_CHECKING:
    from .queues import Queue

RUNTIME_VERSION = 13000
Refusal = Callable[[], CUDARuntimeError]


class Machine:
    """One device of 4 GiB; a fault of the work it ran sticks until `reset`, as it does on a GPU."""

    def __init__(self) -> None:
        self.driver: int | None = RUNTIME_VERSION
        self.devices = 1
        self.total_bytes = 4 << 30
        self.queues: dict[int, Queue] = {}
        self.lock = threading.RLock()
        self.started = False
        self.refusal: Refusal | None = None
        self._forked = False
        self._fault: CUDARuntimeError | None = None

    def check(self) -> None:
        """Raises what every call raises when the device does not answer."""
        if self.refusal is not None:
            raise self.refusal()

    def start(self) -> None:
        """Makes the process one that has used the device: its forked children may not."""
        self.check()
        self.started = True

    def fail(self, fault: CUDARuntimeError) -> None:
        """Breaks the device: queued work is lost and every later call raises `fault`."""
        if self._fault is None:
            self._fault = fault
        for queue in list(self.queues.values()):
            queue.drop()
        self.judge()

    def reset(self) -> None:
        """Mends the device; queued work and captures are lost, memory stays."""
        self._fault = None
        for queue in list(self.queues.values()):
            queue.drop()
        self.judge()

    def judge(self) -> None:
        """Works out anew what calls are answered with, after a change of the state."""
        fault = self._fault
        if self._forked:
            self.refusal = lambda: CUDARuntimeError(faults.INITIALIZATION)
        elif self.driver is None or self.driver < RUNTIME_VERSION:
            self.refusal = lambda: CUDARuntimeError(faults.INSUFFICIENT_DRIVER)
        elif not self.devices:
            self.refusal = lambda: CUDARuntimeError(faults.NO_DEVICE)
        elif fault is not None:
            self.refusal = lambda: type(fault)(fault.status, fault.detail)
        else:
            self.refusal = None

    def after_fork(self) -> None:
        """In a child: the lock may have been held by a thread that does not exist here."""
        self.lock = threading.RLock()
        self._forked = self.started
        self.judge()


machine = Machine()
os.register_at_fork(after_in_child=machine.after_fork)
