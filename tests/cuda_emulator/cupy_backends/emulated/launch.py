"""Runs of kernels: in one order of their threads, or in several that must agree."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence

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


class LaunchedKernel:
    """A kernel by its name, and where in its arguments addresses may be."""

    def __init__(self, name: str, kernel: Kernel) -> None:
        self.name = name
        self.kernel = kernel
        self.run = kernel.run
        kinds = [each.kind for each in kernel.parameters]
        self._pointers = [at for at, kind in enumerate(kinds) if kind == "pointer"]
        self._structs = [at for at, kind in enumerate(kinds) if kind == "struct"]

    def touched(self, data: Sequence[bytes]) -> set[Allocation]:
        """The allocations whose addresses are among the arguments, those in structs included."""
        words = [data[at] for at in self._pointers]
        for at in self._structs:
            words += [data[at][start : start + 8] for start in range(0, len(data[at]) - 7, 8)]
        found = {heap.find_word(word) for word in words}
        found.discard(None)
        return found  # type: ignore[return-value]


class Launch:
    """One run of a kernel with the bytes of its arguments; it keeps the kernel alive, and no memory."""

    __slots__ = ("_block", "_data", "_grid", "_launched", "_shared")

    def __init__(self, launched: LaunchedKernel, grid: Sizes, block: Sizes, data: Sequence[bytes], shared: int) -> None:
        self._launched = launched
        self._grid = grid
        self._block = block
        self._data = data
        self._shared = shared

    def run(self) -> None:
        launched = self._launched
        launches[launched.name] += 1
        touched = launched.touched(self._data)
        if settings.one is None:
            self._run_in_all_orders(touched)
        else:
            self._run_once(settings.one, 0xFF, touched)

    def _run_once(self, order: Order, garbage: int, touched: set[Allocation]) -> None:
        launched = self._launched
        try:
            launched.run(
                self._grid,
                self._block,
                self._data,
                shared_bytes=self._shared,
                order=order,
                seed=launches[launched.name],
                garbage=garbage,
            )
        except KernelFault as fault:
            status = _STATUS.get(fault.kind, faults.LAUNCH_FAILURE)
            raise CUDARuntimeError(status, f"kernel {launched.name}: {fault}") from fault
        for allocation in touched:
            if allocation.damaged_side() is not None:
                heap.examine(allocation, f"kernel {launched.name}")

    def _run_in_all_orders(self, touched: set[Allocation]) -> None:
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
            f"race: kernel {self._launched.name} gives different results in forward and {order} order, "
            f"first difference at allocation {allocation!r} byte {at}",
        )


def _with_tables(touched: set[Allocation]) -> list[Allocation]:
    """The allocations and, one step further, those whose addresses are in small ones of them; in order of address."""
    found = set(touched)
    low, high = heap.bounds()
    for table in touched:
        if table.nbytes < TABLE_BYTES:
            words = np.frombuffer(table.content(), np.uint64, table.nbytes // 8)
            for word in np.unique(words[(words >= low) & (words < high)]).tolist():
                allocation = heap.find(word)
                if allocation is not None:
                    found.add(allocation)
    return sorted(found, key=lambda each: each.ptr)
