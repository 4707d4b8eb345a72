"""A device: its queue, its memory, its kernels, and the one way in which work reaches it."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cache
from typing import Any

import cupy
import numpy as np

from turret.spi import BackendUnavailable, CaptureError, OpenedHere, Shape

from .arrays import Host, Native, geometry
from .cublas import Blas
from .kernels import source
from .library import FAILURES, NO_MEMORY, CUDARuntimeError, X, translated

THREADS = 256  # of a block, where nothing speaks for another number
MOST_BLOCKS = 16_384  # where threads go on to further elements
MOST_SENT = 2**26  # bytes on their way to the device that nobody has waited for


class Capture:
    """What one capture needs and leaves behind: a queue that records, memory of its own, and foreign arrays it read."""

    def __init__(self, given: Iterable[X], spare: Callable[[], None]) -> None:
        self.stream = cupy.cuda.Stream(non_blocking=True)
        self.pool = cupy.cuda.MemoryPool(_lasting(spare))
        self.own: set[int] = set()
        self.given = {x.data.mem.ptr for x in given}
        self.read: dict[int, X] = {}

    def begin(self) -> None:
        """From here on the queue records."""
        self.stream.begin_capture()

    def end(self) -> Any:
        """The graph of what was recorded."""
        return self.stream.end_capture()


def _lasting(spare: Callable[[], None]) -> Callable[[int], Any]:
    """How the pool of a graph gets memory, which stays as long as the pool.

    A pool that runs out gives its free blocks back to the device and tries again; but what has been recorded goes on
    using them at every launch. `spare` frees memory elsewhere.
    """
    kept = []

    def more(size: int) -> Any:
        try:
            memory = cupy.cuda.Memory(size)
        except CUDARuntimeError as error:
            if error.status != NO_MEMORY:
                raise
            spare()
            memory = cupy.cuda.Memory(size)
        kept.append(memory)
        return cupy.cuda.MemoryPointer(memory, 0)

    return more


class _PerThread(threading.local):
    capture: Capture | None = None


class Place:
    """Everything on one device goes through one queue, whichever thread sends it.

    So memory can be used again at once: what needs it next comes later in the same queue. The current device and stream
    of the caller stay as they are.
    """

    def __init__(self, spec: str, number: int) -> None:
        self.spec, self.number = spec, number
        self._device = cupy.cuda.Device(number)
        self._opened = OpenedHere(spec)
        self._local = _PerThread()
        self._functions: dict[tuple[str, str], Any] = {}
        self._modules: dict[str, Any] = {}
        self._peak = 0
        self._sent: list[Host] = []
        self._sent_bytes = 0
        with self._device:
            self._stream = cupy.cuda.Stream(non_blocking=True)
            self._pool = cupy.cuda.MemoryPool()
        self._blas: Blas | None = None
        self._blas_lock = threading.Lock()

    def empty(self, shape: Shape, dtype: Native) -> X:
        """A C-ordered array with undefined contents. Raises: OutOfMemory, BackendUnavailable."""
        self._opened.check()
        capture = self._local.capture
        pool, stream = (self._pool, self._stream) if capture is None else (capture.pool, capture.stream)
        size = math.prod(shape) * dtype.itemsize
        try:
            with self._device, stream:
                memory = pool.malloc(size)
                self._peak = max(self._peak, self._pool.used_bytes())
        except FAILURES as error:
            raise translated(error, self.spec) from error
        if capture is not None:
            capture.own.add(memory.mem.ptr)
        return cupy.ndarray(shape, dtype, memory)

    def launch(self, file: str, name: str, blocks: int | tuple[int, ...], threads: int, *operands: Any) -> None:
        """Queues one kernel. An array travels as its address, an int as int64, a float as float64, None as null.

        Raises: BackendUnavailable, also for what earlier work brought up.
        """
        self._opened.check()
        capture = self._local.capture
        if capture is not None:
            _hold(capture, operands)
        stream = self._stream if capture is None else capture.stream
        grid = (blocks,) if isinstance(blocks, int) else blocks
        try:
            with self._device:
                function = self._functions.get((file, name)) or self._function(file, name)
                function(grid, (threads,), operands, 0, stream)
        except FAILURES as error:
            raise translated(error, self.spec) from error

    def spread(self, file: str, name: str, count: int, *operands: Any) -> None:
        """Queues a kernel over `count` elements whose threads go on in strides; nothing where there are none."""
        if count:
            self.launch(file, name, min(-(-count // THREADS), MOST_BLOCKS), THREADS, *operands)

    @property
    def capture(self) -> Capture | None:
        """The capture that this thread is in."""
        return self._local.capture

    def may_write(self, x: X) -> bool:
        """Whether x, which the caller of a slot gives away, is its to give: in a capture, not every array is."""
        capture = self._local.capture
        return capture is None or x.data.mem.ptr in capture.own or x.data.mem.ptr in capture.given

    def hold(self, arrays: Iterable[X]) -> None:
        """Keeps arrays alive, as the operands of a launch are, whose addresses a kernel gets in other ways."""
        if (capture := self._local.capture) is not None:
            _hold(capture, arrays)

    def multiply(self, call: Callable[[Blas], None], *operands: X) -> None:
        """Queues a product. Raises: BackendUnavailable."""
        self._opened.check()
        capture = self._local.capture
        if capture is not None:
            _hold(capture, operands)
        stream = self._stream if capture is None else capture.stream
        try:
            with self._device, self._blas_lock:
                blas = self._products()
                blas.use(stream.ptr)
                call(blas)
        except FAILURES as error:
            raise translated(error, self.spec) from error

    def dense(self, x: X) -> X:
        """x itself where its elements lie in C order without gaps, else a copy that does."""
        return x if x.flags.c_contiguous else self.copied(x)

    def copied(self, x: X) -> X:
        """A fresh C-ordered array of equal values."""
        made = self.empty(x.shape, x.dtype)
        self.copy_into(made, x)
        return made

    def copy_into(self, out: X, x: X) -> None:
        """Writes x, which has the shape and dtype of `out`, into `out`; both may be any views."""
        self.spread("copy", f"copy_{x.dtype.itemsize}", x.size, x, out, x.size, geometry(x.shape, x, out))

    def upload(self, out: X, host: Host) -> None:
        """Queues a copy of `host`, of out's shape and dtype, to `out`; `host` may change when this returns.

        Memory that is pinned, or that the device reads itself, is read when the copy's turn comes. So a copy is sent,
        and lives until somebody waits.
        """
        sent = np.array(host, out.dtype, order="C")
        self._transfer(
            lambda: out.data.copy_from_host_async(sent.ctypes.data, out.nbytes, self._stream), "storage.from_host"
        )
        self._sent.append(sent)
        self._sent_bytes += sent.nbytes
        if self._sent_bytes > MOST_SENT:
            self.wait("storage.from_host")

    def download(self, x: X, address: int) -> None:
        """Copies all of x, C-ordered, to host memory at `address`, and waits."""
        self._transfer(lambda: x.data.copy_to_host_async(address, x.nbytes, self._stream), "storage.to_host")
        self.wait("storage.to_host")

    def wait(self, what: str) -> None:
        """Returns when everything queued so far has come to its end."""
        sent, self._sent, self._sent_bytes = self._sent, [], 0
        self._transfer(self._stream.synchronize, what)
        del sent

    def refuse_while_capturing(self, what: str) -> None:
        """Raises: CaptureError where this thread is capturing."""
        if self._local.capture is not None:
            raise CaptureError(
                f"{what} needs values, and while {self.spec} captures a function there are none yet; return the array "
                f"and read it outside, and hand host values over as arguments"
            )

    @contextmanager
    def capturing(self, given: Iterable[X]) -> Iterator[Capture]:
        """Within, this thread's work on the device goes to the capture's queue. given: what it may write in place."""
        self._opened.check()
        self.load_everything()
        with self._device:
            capture = Capture(given, self._pool.free_all_blocks)
        self._local.capture = capture
        try:
            # current, so that CuPy refuses to read an array behind our back; a stream is so only on its own device
            with self._device, capture.stream:
                yield capture
        finally:
            self._local.capture = None

    def run(self, work: Callable[[Any], Any]) -> Any:
        """What `work` returns for the device's queue, with this device current. Raises: BackendUnavailable."""
        self._opened.check()
        try:
            with self._device:
                return work(self._stream)
        except FAILURES as error:
            raise translated(error, self.spec) from error

    def load_everything(self) -> None:
        """Loads cuBLAS and every kernel file: doing so while a queue is captured would end the capture."""
        missing = [file for file in source.names() if file not in self._modules]
        if missing:
            with ThreadPoolExecutor() as compilers:
                for loaded in [compilers.submit(self._load, file) for file in missing]:
                    loaded.result()
        with self._blas_lock:
            self.run(lambda _: self._products())

    def memory(self) -> tuple[int, int, int]:
        """Bytes in use by arrays, the most that were, and what the device has."""
        used, total = self.run(lambda _: (self._pool.used_bytes(), cupy.cuda.runtime.memGetInfo()[1]))
        return used, max(used, self._peak), max(used, total)

    def release(self) -> None:
        """Gives memory that no array uses back to the device."""
        self.wait("closing")
        self.run(lambda _: self._pool.free_all_blocks())

    def _transfer(self, work: Callable[[], None], what: str) -> None:
        self.refuse_while_capturing(what)
        self._opened.check()
        try:
            with self._device:
                work()
        except FAILURES as error:
            raise translated(error, self.spec) from error

    def _load(self, file: str) -> None:
        self.run(lambda _: self._module(file))

    def _products(self) -> Blas:
        if self._blas is None:
            self._blas = Blas(self.spec, self._pool, self._stream)
        return self._blas

    def _function(self, file: str, name: str) -> Any:
        return self._functions.setdefault((file, name), self._module(file).get_function(name).kernel)

    def _module(self, file: str) -> Any:
        module = self._modules.get(file)
        if module is None:
            module = cupy.RawModule(code=source.text(file), options=source.OPTIONS)
            try:
                module.compile()
            except OSError as error:
                raise BackendUnavailable(
                    f"{self.spec}: compiled kernels cannot be stored: {error}; set CUPY_CACHE_DIR to a folder that can "
                    f"be written to"
                ) from error
            module = self._modules.setdefault(file, module)
        return module


def _hold(capture: Capture, operands: Iterable[Any]) -> None:
    """Remembers arrays that were there before: the graph goes on reading them."""
    for x in operands:
        if isinstance(x, cupy.ndarray) and x.data.mem.ptr not in capture.own:
            capture.read[x.data.mem.ptr] = x


@cache
def place_of(device: str) -> Place:
    """The process's place for a device word: "" and "emulated" are the first, a number is itself."""
    number = int(device) if device.isdigit() else 0
    return Place(f"cuda:{device}" if device else "cuda", number)
