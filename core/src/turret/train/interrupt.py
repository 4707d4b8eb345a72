"""Ending a run on SIGINT or SIGTERM: the step in progress is finished first."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import FrameType
from typing import Any


class Interrupt:
    """Which signal asked the run to end, if any."""

    def __init__(self) -> None:
        self.signal: signal.Signals | None = None


@contextmanager
def watch_signals() -> Iterator[Interrupt]:
    """Notes the first SIGINT or SIGTERM instead of dying of it; a second one acts as usual. Handlers are restored.

    Outside the main thread Python delivers no signals, and nothing is watched.
    """
    interrupt = Interrupt()
    if threading.current_thread() is not threading.main_thread():
        yield interrupt
        return
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def note(number: int, _frame: FrameType | None) -> None:
        interrupt.signal = signal.Signals(number)
        _restore(before)

    for number in before:
        signal.signal(number, note)
    try:
        yield interrupt
    finally:
        _restore(before)


def _restore(handlers: Mapping[signal.Signals, Any]) -> None:
    for number, handler in handlers.items():
        signal.signal(number, handler if handler is not None else signal.SIG_DFL)
