"""The names inside `RUN/checkpoints/`: finished steps, the pointer, and what a killed writer leaves behind."""

from __future__ import annotations

import os
import re
from pathlib import Path

FOLDER = "checkpoints"
POINTER = "latest"

_STEP = re.compile(r"step-(\d{8,19})")
_LEFTOVER = re.compile(r"\.(step-\d{8,19})-\d+\.(tmp|old|trash)")


def step_name(step: int) -> str:
    """step-00000100 for 100."""
    return f"step-{step:08d}"


def step_of(name: str) -> int | None:
    """100 for step-00000100; None for a name that `step_name` would not give."""
    match = _STEP.fullmatch(name)
    return int(match[1]) if match and step_name(int(match[1])) == name else None


def aside(target: Path, kind: str) -> Path:
    """The hidden sibling that this process uses: tmp being written, old being replaced, trash being deleted."""
    return target.with_name(f".{target.name}-{os.getpid()}.{kind}")


def leftover(path: Path) -> tuple[str, str] | None:
    """(step name, kind) of a hidden sibling; None for anything else."""
    match = _LEFTOVER.fullmatch(path.name)
    return (match[1], match[2]) if match else None
