"""Cases of work in unusual order: after exceptions, after inputs are gone, long after it was asked for."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from turret.registry.guard import attempt
from turret.spi import DTYPES, DTypeError, Host
from turret.tensor import backward, ops, tensor

from ..bench import Bench
from ..case import Case
from ..instrument import uncounted
from ..threads import in_threads
from ..workload import check

SHAPE = (64, 48)
TOO_MANY = 2**52
"""More elements than any device has bytes."""


def order_cases() -> Iterator[Case]:
    """Each ends with the workload, which must be right."""
    checks: dict[str, Callable[[Bench], None]] = {
        "exception/dtype": _dtype,
        "exception/shape": _shape,
        "exception/too-large": _too_large,
        "exception/in-a-program": _in_a_program,
        "exception/in-a-gradient": _in_a_gradient,
        "order/inputs-deleted": _inputs_deleted,
        "order/host-array-overwritten": _host_overwritten,
        "order/results-read-last": _read_last,
        "order/results-outlive-others": _outlive,
        "order/synchronize": _synchronize,
        "order/gradients-in-threads": _gradients_in_threads,
    }
    for name, body in checks.items():
        yield Case(id=f"lifecycle/{name}", body=body, kind="lifecycle")


def right(bench: Bench, tools: Any, when: str, number: int = 0) -> None:
    """The workload gives right results. Each case has a number of its own: the last one's results are wrong here."""
    wrong = check(tools, number)
    bench.require(wrong is None, f"{when}: {wrong}")


def _dtype(bench: Bench) -> None:
    storage = bench.tools.storage
    lacking = next((dtype for dtype in DTYPES if dtype not in bench.device.dtypes), None)
    if lacking is None:
        bench.skip("the device has every dtype there is")
    for _ in range(3):
        bench.refuses(DTypeError, lambda: storage.from_host(np.ones(3, np.float32), dtype=lacking))
        bench.refuses(DTypeError, lambda: storage.full((3,), 1.0, dtype=lacking))
    right(bench, bench.tools, f"after {lacking} was refused", 4)


def _shape(bench: Bench) -> None:
    """Core checks shapes, and a slot may do what it likes with wrong ones as long as no value is read."""
    tools = bench.tools
    for _ in range(3):
        attempt(lambda: tools.layout.reshape(tools.storage.full((2, 3), 1.0, dtype="float32"), (4, 2)))
        attempt(lambda: tools.layout.broadcast_to(tools.storage.full((2, 3), 1.0, dtype="float32"), (2, 4)))
    right(bench, bench.tools, "after calls with wrong shapes", 5)


def _too_large(bench: Bench) -> None:
    storage = bench.tools.storage

    def ask() -> None:
        storage.synchronize(storage.full((TOO_MANY,), 1.0, dtype="float32"))

    bench.refuses(Exception, ask)
    right(bench, bench.tools, "after more memory was asked for than there is", 6)


def _in_a_program(bench: Bench) -> None:
    """What a captured function raises comes out, and neither that program nor others are damaged."""
    tools = bench.tools
    angry = True

    def function(x: Any) -> tuple[Any, ...]:
        twice = tools.elementwise.add(x, x)
        if angry:
            raise ZeroDivisionError("raised on purpose")
        return (tools.elementwise.multiply(twice, x),)

    program = tools.compile.compile(function)
    given = bench.draw.normal(5)
    x = bench.put(given)
    bench.refuses(ZeroDivisionError, lambda: program(x))
    angry = False
    for each in (program, tools.compile.compile(function)):
        (out,) = each(x)
        bench.close("2 x^2", out, 2 * given.exact**2)
    right(bench, bench.tools, "after an exception in a program", 7)


def _in_a_gradient(bench: Bench) -> None:
    """A loss that overflows is no exception; what follows is right."""
    x = tensor(np.full((3, 4), 3e38, np.float32), requires_grad=True)
    with np.errstate(all="ignore"):
        backward((x * x).sum())
    y = tensor(np.full((3, 4), 2.0, np.float32), requires_grad=True)
    found = backward((y * y).sum())
    bench.same("gradient", found[y].numpy(), np.full((3, 4), 4.0, np.float32))
    right(bench, bench.tools, "after an overflow", 8)


def _chain(tools: Any, x: Any, steps: int = 6) -> Any:
    """Doubles and halves: the values stay exact, and every step has its own buffer."""
    for n in range(steps):
        x = tools.elementwise.multiply(x, 2.0 if n % 2 == 0 else 0.5)
    return x


def _inputs_deleted(bench: Bench) -> None:
    tools, host = bench.tools, bench.draw.normal(*SHAPE).host
    results = []
    for n in range(8):
        x = tools.storage.from_host(host + np.float32(n))
        results.append(_chain(tools, x))
        del x
        gc.collect(0)
        for _ in range(3):
            tools.storage.full(SHAPE, float("nan"), dtype="float32")
    for n, result in enumerate(results):
        bench.same(f"result {n}", bench.get(result), host + np.float32(n))


def _host_overwritten(bench: Bench) -> None:
    """`from_host` took a private copy when it returned, and `to_host` gave one."""
    storage, host = bench.tools.storage, bench.draw.normal(*SHAPE).host
    results = []
    buffer = host.copy()
    for n in range(8):
        buffer[...] = host + np.float32(n)
        results.append(storage.from_host(buffer))
    buffer[...] = np.nan
    for n, result in enumerate(results):
        got = storage.to_host(result)
        bench.same(f"array {n}", got, host + np.float32(n))
        got[...] = np.nan
        bench.same(f"array {n}, read again", storage.to_host(result), host + np.float32(n))


def _read_last(bench: Bench) -> None:
    """Hundreds of results asked for before the first one is read, the last one first."""
    tools, host = bench.tools, bench.draw.normal(8, 8).host
    results = []
    x = tools.storage.from_host(np.zeros((8, 8), np.float32))
    step = tools.storage.from_host(np.ones((8, 8), np.float32))
    for _ in range(300):
        x = tools.elementwise.add(x, step)
        results.append(x)
    for n, result in reversed(list(enumerate(results, start=1))):
        bench.same(f"after {n} steps", bench.get(result), np.full(host.shape, n, np.float32))


def _outlive(bench: Bench) -> None:
    """Host results stay what they were while the device goes on."""
    tools, host = bench.tools, bench.draw.normal(*SHAPE).host
    kept: list[Host] = []
    for n in range(20):
        kept.append(tools.storage.to_host(_chain(tools, tools.storage.from_host(host * np.float32(2.0**-n)))))
    for n, got in enumerate(kept):
        bench.same(f"result {n}", got, host * np.float32(2.0**-n))


def _synchronize(bench: Bench) -> None:
    """For none, one, several and the same array twice; it changes nothing."""
    tools, given = bench.tools, bench.draw.normal(*SHAPE)
    x = bench.put(given)
    y = _chain(tools, x)
    for arrays in ((), (y,), (x, y), (y, y), (x, y, tools.storage.full((), 1.0, dtype="float32"))):
        tools.storage.synchronize(*arrays)
    bench.same("result", bench.get(y), given.host)


def _gradients_in_threads(bench: Bench) -> None:
    """Graphs of four threads do not meet."""
    opened = uncounted(bench.opened)

    def work(number: int) -> str | None:
        for step in range(5):
            weight = np.full((6, 4), number + 1.0, np.float32)
            x = np.arange(12, dtype=np.float32).reshape(3, 4) + step
            w = tensor(weight, backend=opened, requires_grad=True)
            loss = (ops.linear(tensor(x, backend=opened), w) * 2.0).sum()
            got, want = backward(loss)[w].numpy(), np.broadcast_to(2 * x.sum(axis=0), (6, 4))
            if not np.array_equal(got, want):
                return f"gradient {got[0].tolist()}, wanted {want[0].tolist()}"
        return None

    in_threads(bench, work)
