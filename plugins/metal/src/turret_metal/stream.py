"""The one queue of a device: every operation names it, and every evaluation goes through it."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any
from weakref import ReferenceType, ref

import mlx.core as mx

from turret.spi import CaptureError, OpenedHere, OutOfMemory

X = mx.array

# How many results may wait unevaluated, and how large they may be: a loop that never reads anything keeps a graph of
# this size and not of its length, and what it is done with gives its memory back.
MOST_RESULTS, MOST_BYTES = 128, 2**23


class _PerThread(threading.local):
    """Whether this thread is inside a function that is being compiled, and its results that nobody evaluated yet."""

    def __init__(self) -> None:
        self.tracing = 0
        self.pending: list[ReferenceType[X]] = []
        self.pending_bytes = 0


class Stream:
    """Runs MLX operations on a stream of its own, so that the defaults of the process stay as they are.

    Arrays that one thread made may be evaluated by another: MLX lets its default streams do so in their own thread
    only, and this kind of stream in any, one at a time, which a lock sees to. Building a graph needs no lock.
    """

    def __init__(self, spec: str, device: mx.Device, total_bytes: int) -> None:
        self.spec, self.device, self.total_bytes = spec, device, total_bytes
        self.on_gpu = device == mx.Device(mx.gpu)
        self._stream = mx.new_thread_unsafe_stream(device)
        self._opened = OpenedHere(spec)
        self._lock = threading.RLock()
        self._local = _PerThread()

    def __call__(self, operation: Callable[..., X], *operands: object, **options: object) -> X:
        """The result of one operation, not computed yet.

        Raises: OutOfMemory where it is larger than the machine's memory: MLX's CPU device does not survive trying.
        """
        made = operation(*operands, stream=self._stream, **options)
        size = made.nbytes
        if size > self.total_bytes:
            raise OutOfMemory(
                f"{self.spec}: a result of shape {tuple(made.shape)} takes {size} bytes, and there are "
                f"{self.total_bytes} in all; make the batch or the model smaller"
            )
        if not self._local.tracing:
            self._note(made, size)
        return made

    def view(self, operation: Callable[..., Any], *operands: object, **options: object) -> Any:
        """The result, or results, of an operation that takes no memory, however large they look."""
        return operation(*operands, stream=self._stream, **options)

    def after(self, x: X, *before: X) -> X:
        """`x`, a result of this stream, computed only when all of `before` is."""
        if not before:
            return x
        own = self.view(mx.contiguous, x)  # not computed yet: only then does `depends` know the stream of its operand
        made: X = mx.depends([own], list(before))[0]
        return made

    @property
    def is_tracing(self) -> bool:
        """Whether the calling thread is inside a function that is being compiled."""
        return self._local.tracing > 0

    @contextmanager
    def tracing(self) -> Iterator[None]:
        """While a function is being compiled: arrays have no values, and nothing is evaluated."""
        self._local.tracing += 1
        try:
            yield
        finally:
            self._local.tracing -= 1

    def check(self) -> None:
        """Raises: BackendUnavailable in a forked child, where evaluating would wait for ever."""
        self._opened.check()

    def refuse_while_tracing(self, what: str) -> None:
        """Raises: CaptureError inside a function that is being compiled."""
        if self._local.tracing:
            raise CaptureError(
                f"{what} inside a function that {self.spec} is compiling: arrays have no values there; return the "
                f"array and read it outside, or hand host values over as arguments"
            )

    def start(self, *arrays: X) -> None:
        """Schedules what `arrays` need. Raises: BackendUnavailable, OutOfMemory."""
        if self._local.tracing:
            return
        self.check()
        try:
            with self._lock:
                mx.async_eval(*arrays)  # type: ignore[no-untyped-call]  # so the stubs of MLX have it
        except RuntimeError as error:
            raise self.translated(error) from error

    def wait(self, *arrays: X) -> None:
        """Returns when `arrays` are computed. Raises: BackendUnavailable, OutOfMemory."""
        self.start(*arrays)
        try:
            mx.eval(*arrays)
        except RuntimeError as error:
            raise self.translated(error) from error

    def translated(self, error: Exception) -> Exception:
        """OutOfMemory where MLX's `error` says so, else itself: MLX has no type of its own for it."""
        text = str(error)
        return OutOfMemory(f"{self.spec}: {text}; make the batch or the model smaller") if "alloc" in text else error

    def _note(self, made: X, size: int) -> None:
        """Counts a result, and starts what waits where that is much. What nobody holds any more is not computed.

        It waits until the last such start has come to its end: MLX reserves memory when it schedules.
        """
        local = self._local
        local.pending.append(ref(made))
        local.pending_bytes += size
        if len(local.pending) >= MOST_RESULTS or local.pending_bytes >= MOST_BYTES:
            pending, local.pending, local.pending_bytes = local.pending, [], 0
            self.check()
            with self._lock:
                mx.synchronize(self._stream)
            self.start(*(x for x in (each() for each in pending) if x is not None))


@cache
def stream_of(device: str) -> Stream:
    """The process's stream of the device word `device`: "" for the GPU, "cpu" for MLX's CPU device."""
    kind, spec = (mx.cpu, "metal:cpu") if device == "cpu" else (mx.gpu, "metal")
    return Stream(spec, mx.Device(kind), _total_bytes(kind))


def _total_bytes(kind: mx.DeviceType) -> int:
    told = mx.device_info(mx.Device(kind)).get("memory_size")
    return int(told) if told else os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
