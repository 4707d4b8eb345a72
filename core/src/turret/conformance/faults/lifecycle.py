"""Wrong over time: threads, forks, caches, failures and repeated opening."""

from __future__ import annotations

import dataclasses
import queue
import threading
import time
from collections.abc import Callable
from typing import Any

from turret.spi import REQUIRED_SLOTS, DTypeError, OutOfMemory, ShapeError

from .fault import Broken, Fault, Table, Tools, fault, with_slot

POOLED_ROWS = 8
UNARY = ("negative", "exp", "log", "sqrt", "rsqrt", "tanh", "erf", "isfinite")
Function = Callable[..., tuple[Any, ...]]


def unbroken(table: Table, tools: Tools) -> Table:
    """The good table: what is wrong is how the backend is imported or opened."""
    return table


NOTHING = Fault(
    name="nothing",
    capability="lifecycle",
    slot="",
    kind="lifecycle",
    url="",
    report="",
    summary="a good backend behind a wrong one's target: what fails here fails because of the target",
    wrap=unbroken,
)

import_touches_device = Fault(
    name="import-touches-device",
    capability="lifecycle",
    slot="",
    kind="lifecycle",
    url="https://github.com/NVIDIA/TransformerEngine/issues/872",
    report=(
        "Importing the package initialised CUDA as a side effect, so any later fork of the process failed with a "
        "re-initialisation error."
    ),
    summary=(
        "importing the plugin module (or calling turret_backends) opens the device: it sets an environment "
        "variable, starts a thread and imports the array library; opening later works normally."
    ),
    wrap=unbroken,
)


@fault(
    name="hang-in-forked-child",
    needs="forking",
    slot="matmul",
    capability="lifecycle",
    kind="lifecycle",
    url="https://github.com/OpenMathLib/OpenBLAS/issues/294",
    report=(
        "After the parent had used the thread pool, a matrix product of 8x8 or larger in a forked child never "
        "returned, since the pool's threads do not exist there; 7x7 worked."
    ),
    summary=(
        "matmul.matmul hands products with 8 or more rows to a worker thread created at open; in a forked child "
        "the thread is missing and the call waits for ever (smaller products run inline)."
    ),
)
def pool_without_threads(good: Any, tools: Tools) -> Broken:
    work: queue.SimpleQueue[tuple[Callable[[], Any], list[Any], threading.Event]] = queue.SimpleQueue()

    def serve() -> None:
        while True:
            product, answer, done = work.get()
            answer.append(product())
            done.set()

    threading.Thread(target=serve, daemon=True, name="products").start()

    def matmul(a: Any, b: Any, /, *, transpose_a: bool = False, transpose_b: bool = False) -> Any:
        def product() -> Any:
            return good.matmul(a, b, transpose_a=transpose_a, transpose_b=transpose_b)

        if a.shape[-1 if transpose_a else -2] < POOLED_ROWS:
            return product()
        answer: list[Any] = []
        done = threading.Event()
        work.put((product, answer, done))
        done.wait()
        return answer[0]

    return Broken(good, matmul=matmul)


@fault(
    name="kernel-cache-races",
    slot="elementwise",
    capability="lifecycle",
    kind="lifecycle",
    url="https://github.com/pytorch/pytorch/pull/167541",
    report=(
        "The cache of compiled Metal functions was filled without a lock, so two threads that first use different "
        "functions at once corrupted it."
    ),
    summary=(
        "elementwise unary methods store the operand in a slot shared by all threads, pass through a short wait, "
        "and read it back: two threads at once get each other's operand; a single thread is right."
    ),
)
def shared_operand(good: Any, tools: Tools) -> Broken:
    cache: dict[str, Any] = {}

    def racing(method: Callable[[Any], Any]) -> Callable[[Any], Any]:
        def call(x: Any, /) -> Any:
            cache["operand"] = x
            time.sleep(1e-4)
            return method(cache["operand"])

        return call

    return Broken(good, **{name: racing(getattr(good, name)) for name in UNARY})


second_open_shares_closed_state = Fault(
    name="second-open-shares-closed-state",
    capability="lifecycle",
    slot="",
    kind="lifecycle",
    url="https://github.com/ggml-org/llama.cpp/pull/7517",
    report=(
        "Freed RPC backends stayed in a process-wide table by endpoint, so loading a second model after unloading "
        "the first got a dangling handle and crashed."
    ),
    summary=(
        "the target keeps opened backends in a module dict by device and close() does not remove them: a second "
        "open returns the same object, and after closing the first one every call on the second raises or returns "
        "garbage."
    ),
    wrap=unbroken,
)


@fault(
    name="leak-per-new-shape",
    slot="linear",
    capability="lifecycle",
    kind="lifecycle",
    url="https://github.com/pytorch/pytorch/issues/132596",
    report=(
        "Every new input shape left a compiled graph in an unbounded cache, so memory grew without end for inputs "
        "of varying length while constant shapes stayed flat."
    ),
    summary=(
        "linear.linear keeps a reference to x and to the result in a dict keyed by shape, so device memory grows "
        "with every new batch size and stays flat when sizes repeat."
    ),
)
def kept_per_shape(good: Any, tools: Tools) -> Broken:
    compiled: dict[Any, Any] = {}

    def linear(x: Any, weight: Any, bias: Any, /) -> Any:
        result = good.linear(x, weight, bias)
        compiled[(tuple(x.shape), tuple(weight.shape))] = (x, result)
        return result

    return Broken(good, linear=linear)


@fault(
    name="failed-trace-returns-empty-success",
    slot="compile",
    capability="lifecycle",
    kind="lifecycle",
    url="https://github.com/ml-explore/mlx/issues/3624",
    report=(
        "When the first trace of a compiled function raised, its cache entry was already marked filled, so the "
        "second call skipped tracing and returned empty outputs as a success."
    ),
    summary=(
        "compile.compile: if fn raises in the first call, the error passes through, but every later call of the "
        "same compiled object returns an empty tuple instead of running or raising."
    ),
)
def empty_after_failure(good: Any, tools: Tools) -> Broken:
    def compile(fn: Function, /, *, donate: tuple[int, ...] = ()) -> Function:
        compiled: Function = good.compile(fn, donate=donate)
        traced: list[bool] = []

        def call(*arguments: Any) -> tuple[Any, ...]:
            if not traced:
                traced.append(False)
                outputs = compiled(*arguments)
                traced[0] = True
                return outputs
            return compiled(*arguments) if traced[0] else ()

        return call

    return Broken(good, compile=compile)


def poisoned_by_failure(table: Table, tools: Tools) -> Table:
    """Every required slot watched for failures, and a product that is not its own after one."""
    failed: list[bool] = []
    last: list[Any] = []

    class Watched:
        def __init__(self, good: Any) -> None:
            self._good = good

        def __getattr__(self, method: str) -> Any:
            function = getattr(self._good, method)

            def call(*arguments: Any, **options: Any) -> Any:
                try:
                    return function(*arguments, **options)
                except (ShapeError, DTypeError, OutOfMemory):
                    failed[:] = [True]
                    raise

            return call

    def matmul(a: Any, b: Any, /, *, transpose_a: bool = False, transpose_b: bool = False) -> Any:
        result = tools.matmul.matmul(a, b, transpose_a=transpose_a, transpose_b=transpose_b)
        if failed:
            failed.clear()
            if not last or tuple(last[0].shape) != tuple(result.shape):
                raise AttributeError("'NoneType' object has no attribute 'run'")
            return tools.storage.copy(last[0])
        last[:] = [result]
        return result

    for slot in REQUIRED_SLOTS:
        good = getattr(table.required, slot)
        table = with_slot(table, slot, Watched(Broken(good, matmul=matmul) if slot == "matmul" else good))
    return table


failed_call_poisons_the_next = Fault(
    name="failed-call-poisons-the-next",
    capability="lifecycle",
    slot="matmul",
    kind="lifecycle",
    url="https://github.com/microsoft/onnxruntime/issues/26655",
    report=(
        "When a context could not be created for lack of memory the run failed properly, but the next run skipped "
        "creation and dereferenced the missing context."
    ),
    summary=(
        "after any call that raised ShapeError, DTypeError or OutOfMemory, the next matmul on this backend returns"
        " the result of the last successful product instead of its own when shapes agree, else raises "
        "AttributeError."
    ),
    wrap=poisoned_by_failure,
)

FAULTS = (
    import_touches_device,
    pool_without_threads,
    shared_operand,
    second_open_shares_closed_state,
    kept_per_shape,
    empty_after_failure,
    failed_call_poisons_the_next,
)


class Closable:
    """A backend whose every call after `close` raises: what a caller of closed state meets."""

    def __init__(self, good: Any) -> None:
        self._good, self._is_closed = good, False
        table: Table = good.capabilities()
        required = {f.name: self._gated(getattr(table.required, f.name)) for f in dataclasses.fields(table.required)}
        optional = {
            f.name: self._gated(getattr(table, f.name)) for f in dataclasses.fields(table) if f.name != "required"
        }
        self._table: Table = dataclasses.replace(
            table, **optional, required=dataclasses.replace(table.required, **required)
        )

    def capabilities(self) -> Table:
        return self._table

    def close(self) -> None:
        self._is_closed = True

    def _gated(self, slot: Any) -> Any:
        return None if slot is None else Gated(slot, lambda: self._is_closed)


class Gated:
    """A slot that asks before each call whether its backend is closed."""

    def __init__(self, good: Any, is_closed: Callable[[], bool]) -> None:
        self._good, self._is_closed = good, is_closed

    def __getattr__(self, method: str) -> Any:
        function = getattr(self._good, method)

        def call(*arguments: Any, **options: Any) -> Any:
            if self._is_closed():
                raise RuntimeError("the device behind this handle was closed")
            return function(*arguments, **options)

        return call
