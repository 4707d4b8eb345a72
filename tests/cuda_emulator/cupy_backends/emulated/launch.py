"""Runs of kernels: in one order of their threads, or in several that must agree."""

from __future__ import annotations

import os
import struct
from collections import Counter
from collections.abc import Iterator, Sequence

import numpy as np
from engine import Kernel, KernelFault, Order

from . import faults
from .faults import CUDARuntimeError, RaceFound
from .heap import Allocation, heap

SNAPSHOT_BYTES = 64 << 20
TABLE_BYTES = 64 << 10
# Orders of the threads, each with other garbage in shared memory.
_PASSES: tuple[tuple[Order, int], ...] = (("forward", 0xFF), ("reverse", 0x7B), ("random", 0xA5))
_STATUS = {"illegal address": faults.ILLEGAL_ADDRESS, "deadlock": faults.LAUNCH_TIMEOUT}
_unpack = struct.Struct("<Q").unpack
Sizes = tuple[int, int, int]

launches: Counter[str] = Counter()


_ONE: dict[str, Order | None] = {"forward": "forward", "reverse": "reverse", "random": "random", "all": None}


class Settings:
    """How kernels run: `order` is forward, reverse, random, or all of these one after another on the same memory."""

    def __init__(self) -> None:
        self.one: Order | None
        self.order = os.environ.get("TURRET_EMULATED_ORDER", "forward")

    @property
    def order(self) -> str:
        return self.one or "all"

    @order.setter
    def order(self, order: str) -> None:
        if order not in _ONE:
            raise ValueError(f"order must be forward, reverse, random or all, got {order!r}")
        self.one = _ONE[order]


settings = Settings()


class Launch:
    """One run of a kernel with the bytes of its arguments; it keeps the kernel alive, and no memory."""

    __slots__ = ("_block", "_data", "_grid", "_kernel", "_name", "_pointers", "_shared")

    def __init__(
        self,
        name: str,
        kernel: Kernel,
        grid: Sizes,
        block: Sizes,
        data: Sequence[bytes],
        pointers: Sequence[bytes],
        shared: int,
    ) -> None:
        self._name = name
        self._kernel = kernel
        self._grid = grid
        self._block = block
        self._data = data
        self._pointers = pointers
        self._shared = shared

    def run(self) -> None:
        launches[self._name] += 1
        touched = self._touched()
        if settings.one is None:
            self._run_in_all_orders(touched)
        else:
            self._run_once(settings.one, 0xFF, touched)

    def _touched(self) -> dict[int, Allocation]:
        touched = {}
        for pointer in self._pointers:
            allocation = heap.find(_unpack(pointer)[0])
            if allocation is not None:
                touched[allocation.ptr] = allocation
        return touched

    def _run_once(self, order: Order, garbage: int, touched: dict[int, Allocation]) -> None:
        try:
            self._kernel.run(
                self._grid,
                self._block,
                self._data,
                shared_bytes=self._shared,
                order=order,
                seed=launches[self._name],
                garbage=garbage,
            )
        except KernelFault as fault:
            raise CUDARuntimeError(
                _STATUS.get(fault.kind, faults.LAUNCH_FAILURE), f"kernel {self._name}: {fault}"
            ) from fault
        for allocation in touched.values():
            if allocation.damaged_side() is not None:
                heap.examine(allocation, f"kernel {self._name}")

    def _run_in_all_orders(self, touched: dict[int, Allocation]) -> None:
        watched = [each for each in _with_tables(touched) if each.nbytes <= SNAPSHOT_BYTES]
        before = [each.content() for each in watched]
        first: list[bytes] = []
        for order, garbage in _PASSES:
            if first:
                for allocation, content in zip(watched, before, strict=True):
                    allocation.restore(content)
            self._run_once(order, garbage, touched)
            after = [each.content() for each in watched]
            first = first or after
            for allocation, expected, got in zip(watched, first, after, strict=True):
                if expected != got:
                    self._report(order, allocation, expected, got)

    def _report(self, order: str, allocation: Allocation, expected: bytes, got: bytes) -> None:
        at = int(np.flatnonzero(np.frombuffer(expected, np.uint8) != np.frombuffer(got, np.uint8))[0])
        raise RaceFound(
            faults.LAUNCH_FAILURE,
            f"race: kernel {self._name} gives different results in forward and {order} order, "
            f"first difference at allocation {allocation!r} byte {at}",
        )


def _with_tables(touched: dict[int, Allocation]) -> Iterator[Allocation]:
    """The allocations and, one step further, those whose addresses are in small ones of them."""
    found = dict(touched)
    low, high = heap.bounds()
    for table in touched.values():
        if table.nbytes < TABLE_BYTES:
            words = np.frombuffer(table.content(), np.uint64, table.nbytes // 8)
            for word in np.unique(words[(words >= low) & (words < high)]).tolist():
                allocation = heap.find(word)
                if allocation is not None:
                    found[allocation.ptr] = allocation
    yield from found.values()
