"""One captured function: the CUDA graph, the buffers it reads and writes, and who holds them.

A graph knows addresses and not arrays. Small arguments are copied into buffers of its own; a large one is read where
it lies, and has to lie there again at the next call. A donated argument becomes a buffer of the graph. What the
function writes in place comes out in the same buffer: it is lent to the caller, who as a rule hands it in again.
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import cupy

from turret.spi import BackendUnavailable, CaptureError, OutOfMemory

from .copies import copy_many
from .library import X
from .place import Capture, Place

SMALL = 65_536  # bytes up to which copying an argument at every call costs less than capturing again
REFUSED = ("stream is capturing", "StreamCapture")  # what CuPy says, and what CUDA says

Function = Callable[..., tuple[X, ...]]


class Lease:
    """Lives as long as an array that lies in a buffer of a graph, or a view of one; keeps the buffer."""

    def __init__(self, buffer: X) -> None:
        self.buffer = buffer


@dataclass(slots=True)
class Buffer:
    """Where the graph expects one argument. copied: it is the graph's own and filled at every call."""

    array: X
    copied: bool
    donated: bool
    lease: weakref.ref[Lease] | None = None

    @property
    def is_lent(self) -> bool:
        return self.lease is not None and self.lease() is not None

    def lies_at(self, x: X) -> bool:
        same = x.data.ptr == self.array.data.ptr and x.strides == self.array.strides
        return same or not x.size


@dataclass(frozen=True, slots=True, kw_only=True)
class Graph:
    """A captured function for one combination of shapes and dtypes."""

    place: Place
    graph: Any
    capture: Capture
    buffers: tuple[Buffer, ...]
    outputs: tuple[X, ...]
    lent: tuple[int | None, ...]  # for each output the argument in whose buffer it lies, where it is lent
    moved: frozenset[int]  # arguments that are copied at every call because they came from elsewhere once

    def fits(self, arrays: Sequence[X]) -> bool:
        """Whether these arguments can be brought to where the graph expects them."""
        return not any(self._missing(buffer, x) for buffer, x in zip(self.buffers, arrays, strict=True))

    def _missing(self, buffer: Buffer, x: X) -> bool:
        if buffer.copied or buffer.lies_at(x):
            return False
        return not buffer.donated or buffer.is_lent

    def moved_now(self, arrays: Sequence[X]) -> frozenset[int]:
        """The arguments that are to be copied from now on."""
        pairs = enumerate(zip(self.buffers, arrays, strict=True))
        return self.moved | {i for i, (b, x) in pairs if not b.donated and self._missing(b, x)}

    def run(self, arrays: Sequence[X]) -> tuple[X, ...]:
        """The function's results. Raises: OutOfMemory, and then nothing has happened."""
        place = self.place
        fresh = [
            place.empty(x.shape, x.dtype) if of is None else x for x, of in zip(self.outputs, self.lent, strict=True)
        ]
        pairs = zip(arrays, self.buffers, strict=True)
        copy_many(place, [(x, buffer.array) for x, buffer in pairs if buffer.copied or not buffer.lies_at(x)])
        place.run(self.graph.launch)
        copy_many(place, [(x, y) for x, y, of in zip(self.outputs, fresh, self.lent, strict=True) if of is None])
        return tuple(y if of is None else self._lend(y, of) for y, of in zip(fresh, self.lent, strict=True))

    def _lend(self, output: X, argument: int) -> X:
        """An array at the place of `output` that the caller may keep: while it does, the buffer is not overwritten."""
        buffer = self.buffers[argument]
        lease = buffer.lease() if buffer.lease is not None else None
        if lease is None:
            lease = Lease(buffer.array)
            buffer.lease = weakref.ref(lease)
        memory = cupy.cuda.UnownedMemory(output.data.ptr, output.nbytes, lease, self.place.number)
        return cupy.ndarray(output.shape, output.dtype, cupy.cuda.MemoryPointer(memory, 0))


def capture(
    place: Place, fn: Function, arrays: Sequence[X], donate: frozenset[int], moved: frozenset[int] = frozenset()
) -> Graph:
    """Captures `fn` with buffers for these arguments; nothing is computed, and `arrays` are as they were.

    moved: arguments to be copied at every call. Raises: what fn raises; CaptureError where it reads a value.
    """
    buffers = _buffers(place, arrays, donate, moved)
    given = [buffer.array for buffer in buffers if buffer.donated]
    with place.capturing(given) as capture:
        try:
            place.run(lambda _: capture.begin())
            outputs = tuple(fn(*(buffer.array for buffer in buffers)))
        except BaseException as error:
            with contextlib.suppress(BackendUnavailable, OutOfMemory):  # the capture is broken off, and says so
                place.run(lambda _: capture.end())
            if isinstance(error, RuntimeError) and any(word in str(error) for word in REFUSED):
                raise CaptureError(
                    f"the function reads a value, or waits, while {place.spec} captures it: {error}; return the array "
                    f"and read it outside"
                ) from error
            raise
        try:
            graph = place.run(lambda _: capture.end())
        except (BackendUnavailable, OutOfMemory) as error:
            raise CaptureError(f"the function cannot be captured: {error}") from error
    inputs = {id(buffer.array) for buffer in buffers}
    capture.read = {at: x for at, x in capture.read.items() if id(x) not in inputs}
    return Graph(
        place=place, graph=graph, capture=capture, buffers=buffers, outputs=outputs,
        lent=_lent(outputs, buffers), moved=moved,
    )  # fmt: skip


def _buffers(place: Place, arrays: Sequence[X], donate: frozenset[int], moved: frozenset[int]) -> tuple[Buffer, ...]:
    made = []
    for i, x in enumerate(arrays):
        others = [y for j, y in enumerate(arrays) if j != i]
        if i in donate:
            own = x if x.flags.c_contiguous and not _overlaps(x, others) else place.empty(x.shape, x.dtype)
            made.append(Buffer(own, copied=False, donated=True))
        elif x.nbytes <= SMALL or i in moved or not x.flags.c_contiguous:
            made.append(Buffer(place.empty(x.shape, x.dtype), copied=True, donated=False))
        else:
            made.append(Buffer(x, copied=False, donated=False))
    return tuple(made)


def _lent(outputs: Sequence[X], buffers: Sequence[Buffer]) -> tuple[int | None, ...]:
    """Which output lies alone in the buffer of a donated argument, dense."""
    found: list[int | None] = []
    for i, out in enumerate(outputs):
        alone = out.size and out.flags.c_contiguous and not _overlaps(out, [*outputs[:i], *outputs[i + 1 :]])
        place = next((j for j, b in enumerate(buffers) if b.donated and _within(out, b.array)), None)
        found.append(place if alone else None)
    return tuple(found)


def _within(x: X, buffer: X) -> bool:
    start, end = buffer.data.ptr, buffer.data.ptr + buffer.nbytes
    return bool(start <= x.data.ptr and x.data.ptr + x.nbytes <= end)


def _overlaps(x: X, others: Sequence[X]) -> bool:
    """Whether memory of x, which is dense, is also memory of another one."""
    start, end = x.data.ptr, x.data.ptr + x.nbytes
    return bool(x.size) and any(y.size and y.data.ptr < end and start < _end(y) for y in others)


def _end(x: X) -> int:
    """The address behind the last element of x, whose steps are not negative."""
    last = sum((size - 1) * step for size, step in zip(x.shape, x.strides, strict=True))
    return int(x.data.ptr + last + x.dtype.itemsize)
