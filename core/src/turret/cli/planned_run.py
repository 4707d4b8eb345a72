"""What every command that trains does around its run: notices, the backend, the display, and the exit status."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, TypeVar

from turret.registry import OpenBackend, open_backend
from turret.train.resume import Plan
from turret.train.telemetry import Sink, choose_sink

from .notices import notice, switch_to_json

R = TypeVar("R")


def carry_out(planned: Plan[Any], run: Callable[[OpenBackend, Sink], R]) -> R:
    """Calls `run` with the backend of the plan and what shows its progress, which gives the terminal back."""
    config = planned.config
    if config.log == "json" or (config.log == "auto" and not sys.stderr.isatty()):
        switch_to_json()
    for path, reason in planned.skipped:
        notice(f"skipped the bad checkpoint {path}: {reason}")
    if planned.notice:
        notice(planned.notice)
    backend = open_backend(config.backend)
    sink = choose_sink(config.log, sys.stderr)
    try:
        return run(backend, sink)
    finally:
        sink.close()


def exit_status(reason: str) -> int:
    """Of a run that ended in order: 0, or by the signal that ended it."""
    return {"SIGINT": 130, "SIGTERM": 143}.get(reason, 0)
