"""Several threads at one backend at once."""

from __future__ import annotations

import threading
from collections.abc import Callable

from turret.registry.guard import Failure, attempt

from .bench import Bench

THREADS, THREAD_SECONDS = 4, 60.0


def in_threads(bench: Bench, work: Callable[[int], str | None]) -> None:
    """`work` of 0..3 at once in threads of their own; each says what is wrong, or None."""
    said: dict[int, str | None] = {}
    start = threading.Barrier(THREADS)

    def run(number: int) -> None:
        start.wait()
        answer = attempt(lambda: work(number))
        said[number] = f"raised {answer}" if isinstance(answer, Failure) else answer

    threads = [threading.Thread(target=run, args=(number,), daemon=True) for number in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(THREAD_SECONDS)
    bench.require(not any(thread.is_alive() for thread in threads), f"a thread hangs after {THREAD_SECONDS:.0f} s")
    for number, wrong in sorted(said.items()):
        bench.require(wrong is None, f"thread {number} of {THREADS}: {wrong}")
