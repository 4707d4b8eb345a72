"""Asking a plugin's probe whether its device works, in a process that can be killed."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from turret.spi import BackendInfo

from .processes import ending, kill

PROBE_SECONDS = 20.0
_CHILD = Path(__file__).with_name("probe_child.py")


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What one probe found. `reason` says why the device cannot be used; None means it can."""

    reason: str | None
    seconds: float


def probe(info: BackendInfo, device: str = "", *, seconds: float = PROBE_SECONDS) -> Verdict:
    """Runs `info.probe` in a fresh interpreter with this one's import path, and kills it after `seconds`."""
    if not sys.executable:
        return Verdict(reason="there is no Python interpreter to run its probe in", seconds=0.0)
    start = time.perf_counter()
    reason = _ask(json.dumps({"path": sys.path, "probe": info.probe, "device": device}), seconds)
    return Verdict(reason=reason, seconds=time.perf_counter() - start)


def _ask(request: str, seconds: float) -> str | None:
    process = subprocess.Popen(
        # -P: the folder of the program must not be searched for modules.
        [sys.executable, "-P", str(_CHILD)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        encoding="utf-8",
        errors="replace",
        start_new_session=True,
    )
    try:
        answer, noise = process.communicate(request, timeout=seconds)
    except subprocess.TimeoutExpired:
        return f"its probe gave no answer within {seconds:g} s and was killed"
    finally:
        if process.returncode is None:
            _end(process)
    return _read(answer, noise, process.returncode)


def _read(answer: str, noise: str, status: int) -> str | None:
    if status == 0 and answer:
        reason: str | None = json.loads(answer)["reason"]
        return reason
    lines = noise.strip().splitlines()
    return f"its probe {ending(status)}" + (f": {lines[-1]}" if lines else " without an answer")


def _end(process: subprocess.Popen[str]) -> None:
    """Kills the probe; does not wait for pipes that a stray grandchild may hold."""
    kill(process)
    for pipe in (process.stdin, process.stdout, process.stderr):
        if pipe is not None:
            pipe.close()
