"""Cases of memory: a fixed workload, many times, leaves no more in use than it found."""

from __future__ import annotations

import contextlib
import gc
import itertools
import os
import sys
import time
import tracemalloc
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from turret.models import MiniConfig, build_model
from turret.optim import Adam
from turret.spi import ShapeError
from turret.tensor import backward, ops, tensor

from ..bench import Bench
from ..case import Case

STEPS, WARM, ATTEMPTS = 300, 40, 3
SHAPE = (128, 128)
"""64 KiB: one array that is forgotten at every step is 19 MiB in the end."""
LEAK_BYTES = 6 << 20
LARGE_ROWS = 2048
FEWEST, LONG_S = 100, 3.0
PYTHON_BYTES_PER_STEP = 2000
SMALL = MiniConfig(vocabulary=11, context=6, width=8, heads=2, kv_heads=1, blocks=1, feed_forward=8)


def memory_cases() -> Iterator[Case]:
    """Slots, donated buffers, transfers, training steps, and many small arrays."""
    checks: dict[str, Callable[[Bench], None]] = {
        "leak/slots": _slots,
        "leak/donated": _donated,
        "leak/transfers": _transfers,
        "leak/training": _training,
        "leak/python-objects": _python_objects,
        "leak/small-arrays": _small_arrays,
        "leak/new-shapes": _new_shapes,
        "leak/refused-calls": _refused,
    }
    for name, body in checks.items():
        yield Case(id=f"lifecycle/{name}", body=body, kind="lifecycle")


def _meters(bench: Bench) -> dict[str, Callable[[], int]]:
    """Bytes in use: of the device where it tells, and of the process."""
    storage = bench.tools.storage
    found: dict[str, Callable[[], int]] = {}
    if (memory := storage.memory()) is not None:
        del memory
        found["device memory"] = lambda: storage.memory().used_bytes  # type: ignore[union-attr]  # it told before
    if sys.platform == "linux":
        found["resident memory"] = _resident
    elif sys.platform != "win32":
        found["peak resident memory"] = _peak
    return found


def _resident() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def _peak() -> int:
    import resource

    used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return used if sys.platform == "darwin" else used * 1024


def _does_not_grow(
    bench: Bench,
    action: Callable[[], object],
    *,
    steps: int = STEPS,
    leak_bytes: int = LEAK_BYTES,
    attempts: int = ATTEMPTS,
) -> None:
    """A leak grows in every attempt; what an allocator or another thread keeps for later does not."""
    meters = _meters(bench)
    if not meters:
        bench.skip("neither the device nor the system tells how much memory is in use")
    steps, allowed = _affordable(action, steps, leak_bytes)
    for _ in range(min(WARM, steps // 2)):
        action()
    least = dict.fromkeys(meters, sys.maxsize)
    for _ in range(attempts):
        gc.collect()
        before = {name: meter() for name, meter in meters.items()}
        for _ in range(steps):
            action()
        gc.collect()
        for name, meter in meters.items():
            least[name] = min(least[name], meter() - before[name])
        if max(least.values()) <= allowed:
            break
    for name, grown in least.items():
        bench.require(
            grown <= allowed,
            f"{name} grew by {grown / 2**20:.1f} MiB over {steps} steps, {attempts} times over; wanted less than "
            f"{allowed / 2**20:.1f} MiB",
        )


def _affordable(action: Callable[[], object], steps: int, leak_bytes: int) -> tuple[int, int]:
    """How many steps to take, and how much they may leave: fewer and less where one takes long."""
    action()
    start = time.perf_counter()
    action()
    fewer = max(min(FEWEST, steps // 2), int(LONG_S / (time.perf_counter() - start)))
    return (fewer, leak_bytes * fewer // steps) if fewer < steps else (steps, leak_bytes)


def _slots(bench: Bench) -> None:
    tools, x = bench.tools, bench.put(bench.draw.normal(*SHAPE))

    def action() -> None:
        y = tools.matmul.matmul(x, x)
        y = tools.softmax.softmax(tools.elementwise.add(y, x))
        tools.storage.synchronize(tools.layout.transpose(y, (1, 0)), tools.reduction.sum(y, axis=(0,)))

    _does_not_grow(bench, action)


def _donated(bench: Bench) -> None:
    tools = bench.tools
    ids = bench.put(bench.draw.of(np.arange(8), "int32"))
    rows = bench.put(bench.draw.normal(8, SHAPE[1]))
    held = [tools.storage.full(SHAPE, 0.0, dtype="float32")]

    def action() -> None:
        held[0] = tools.indexing.set_rows(held[0], ids, rows, donate=True)
        held[0] = tools.indexing.scatter_add_rows(held[0], ids, rows, donate=True)
        tools.storage.synchronize(held[0])

    _does_not_grow(bench, action)


def _transfers(bench: Bench) -> None:
    storage, host = bench.tools.storage, bench.draw.normal(*SHAPE).host
    _does_not_grow(bench, lambda: storage.to_host(storage.from_host(host)))


def _step(bench: Bench) -> Callable[[], object]:
    model = build_model(SMALL)
    optimizer = Adam(model.named_parameters())
    ids = tensor(bench.draw.integers(2, 6, low=0, high=11).host)

    def step() -> Any:
        return optimizer.step(backward(ops.cross_entropy(model(ids), ids)))

    return step


def _training(bench: Bench) -> None:
    """Sixty steps: small arrays, many of them, and graphs that have to be freed."""
    _does_not_grow(bench, _step(bench), steps=60)


def _python_objects(bench: Bench) -> None:
    """Objects of a step are gone when it is over, as Python counts them."""
    step, steps = _step(bench), 20
    for _ in range(5):
        step()
    if tracemalloc.is_tracing():
        bench.skip("somebody else is tracing allocations")
    tracemalloc.start()
    try:
        step()
        least = sys.maxsize
        for _ in range(ATTEMPTS):
            gc.collect()
            before = tracemalloc.get_traced_memory()[0]
            for _ in range(steps):
                step()
            gc.collect()
            least = min(least, tracemalloc.get_traced_memory()[0] - before)
            if least <= steps * PYTHON_BYTES_PER_STEP:
                break
    finally:
        tracemalloc.stop()
    per_step = least / steps
    bench.require(
        per_step <= PYTHON_BYTES_PER_STEP,
        f"each training step leaves {per_step:.0f} bytes of Python objects behind; wanted less than "
        f"{PYTHON_BYTES_PER_STEP}",
    )


def _small_arrays(bench: Bench) -> None:
    """Five hundred arrays of 1 KiB alive at once, again and again."""
    full = bench.tools.storage.full

    def action() -> None:
        arrays = [full((256,), float(n), dtype="float32") for n in range(500)]
        bench.tools.storage.synchronize(*arrays[-1:])

    _does_not_grow(bench, action, steps=25)


def _new_shapes(bench: Bench) -> None:
    """Every call has a size that was never seen: what is kept for each shape must not be its arrays.

    Arrays are large, so that one forgotten at every step stands out from the crumbs of a compiler's programs; there are
    many attempts, since a compiler may keep the programs used last, and has to have made that many first.
    """
    tools, weight = bench.tools, bench.put(bench.draw.normal(*SHAPE))
    rows, array_bytes, steps = itertools.count(LARGE_ROWS), 4 * LARGE_ROWS * SHAPE[1], 60

    def action() -> None:
        x = tools.storage.full((next(rows), SHAPE[1]), 1.0, dtype="float32")
        y = tools.softmax.softmax(tools.linear.linear(x, weight, None))
        y = tools.activation.gelu(tools.matmul.matmul(y, weight), form="erf")
        tools.storage.synchronize(tools.reduction.sum(y, axis=(0,)))

    _does_not_grow(bench, action, steps=steps, leak_bytes=steps * array_bytes // 4, attempts=8)


def _refused(bench: Bench) -> None:
    """An operation that core refuses keeps nothing of its operands."""
    x = tensor(bench.draw.normal(*SHAPE).host, requires_grad=True)

    def action() -> None:
        with contextlib.suppress(ShapeError):
            (x * 2.0) @ tensor(np.zeros((3, 3), np.float32))

    _does_not_grow(bench, action)
    bench.refuses(ShapeError, lambda: x @ tensor(np.zeros((3, 3), np.float32)))
