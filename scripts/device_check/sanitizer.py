"""The part `sanitizer`: NVIDIA's compute-sanitizer over the smallest cases, one tool after the other."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from .request import Request, Teller
from .schema import SanitizerRun, Status
from .smallest import chosen

NAME = "compute-sanitizer"
TOOLS = ("memcheck", "racecheck", "synccheck", "initcheck")
OPTIONS = {"memcheck": ("--report-api-errors", "no")}  # a library may ask what a device cannot, and be told so
FOLDERS = ("CUDA_HOME", "CUDA_PATH")
DEFAULT = "/usr/local/cuda"
FOUND_STATUS = 86
SUMMARY = re.compile(r"SUMMARY: (\d+) (?:errors?|hazards?)")
REFUSED = re.compile(r"(?:Device|device) (?:is )?not supported")
MOST_LINES = 30
CLOSING_S = 10.0
LEAST_S = 8.0


def run(request: Request, tell: Teller) -> None:
    """Each tool gets an equal share of what is left of the time."""
    from turret.conformance.profiles import select
    from turret.registry import open_backend
    from turret.spi import REQUIRED_SLOTS

    if request.emulated or request.spec.partition(":")[0] != "cuda":
        tell.absent(f"{request.spec} is no CUDA device that {NAME} could watch")
        return
    program = found()
    if program is None:
        tell.absent(f"no {NAME} on PATH, in CUDA_HOME/bin or {DEFAULT}/bin; it comes with the CUDA toolkit")
        return
    native = {*REQUIRED_SLOTS, *open_backend(request.spec).tools.native}
    cases = chosen((case.id for case in select()), native)
    tell.put(path=program, cases=cases)
    runs = []
    for number, tool in enumerate(TOOLS):
        seconds = tell.left_s / (len(TOOLS) - number)
        if seconds < LEAST_S:
            done = _unfinished(tool, "skipped", "out of time", 0.0)
        else:
            tell.say(f"{tool}, for {seconds:.0f} s at most")
            done = watched(program, tool, request.spec, cases, seconds)
        runs.append(done)
        tell.add("tools", done)
    if all(each.status == "absent" for each in runs):
        tell.absent(runs[0].reason)
    else:
        tell.end([f"{each.tool}: {each.reason}" for each in runs if each.status not in ("passed", "absent")])


def found() -> str | None:
    """The program's path."""
    folders = [os.environ[name] for name in FOLDERS if os.environ.get(name)]
    places = [str(Path(folder, "bin")) for folder in (*folders, DEFAULT)]
    return shutil.which(NAME, path=os.pathsep.join([os.environ.get("PATH", ""), *places]))


def watched(program: str, tool: str, spec: str, cases: Sequence[str], seconds: float) -> SanitizerRun:
    """The cases under one tool, which is ended after `seconds`."""
    asked = json.dumps({"spec": spec, "cases": list(cases), "seconds": max(1.0, seconds - CLOSING_S)})
    began = time.monotonic()
    with TemporaryDirectory() as folder:
        log = Path(folder, "log")
        command = [
            *(program, "--tool", tool, "--log-file", str(log), "--error-exitcode", str(FOUND_STATUS)),
            *OPTIONS.get(tool, ()),
            *(sys.executable, "-P", "-m", f"{__package__}.smallest"),
        ]
        try:
            done = subprocess.run(
                command, input=asked + "\n", capture_output=True, text=True, timeout=seconds, check=False
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            what = (
                f"it took longer than {seconds:.0f} s" if isinstance(error, subprocess.TimeoutExpired) else str(error)
            )
            return _unfinished(tool, "failed", what, time.monotonic() - began)
        text = log.read_text(errors="replace") if log.is_file() else ""
    took = time.monotonic() - began
    said = f"{text}\n{done.stdout}\n{done.stderr}"
    if REFUSED.search(said):
        return _unfinished(tool, "absent", f"{NAME} does not support this device", took)
    summary = SUMMARY.findall(said)
    lines = [line for line in said.splitlines() if line.startswith("=========")][:MOST_LINES]
    answers = [line for line in done.stdout.splitlines() if line.startswith("{")]
    answer: dict[str, Any] = json.loads(answers[-1]) if answers else {"ran": 0, "failed": []}
    errors = sum(map(int, summary)) if summary else None
    reasons = []
    if errors is None or not answers:
        last = ([line for line in done.stderr.splitlines() if line.strip()] or ["nothing on stderr"])[-1]
        reasons.append(f"it came to no end (status {done.returncode}: {last})")
    if errors:
        reasons.append(f"{errors} errors")
    if answer["failed"]:
        reasons.append(f"cases failed under it: {', '.join(answer['failed'])}")
    if not reasons and done.returncode:
        reasons.append(f"it ended with status {done.returncode}")
    return SanitizerRun(
        tool=tool,
        status="failed" if reasons else "passed",
        reason="; ".join(reasons),
        errors=errors,
        cases=answer["ran"],
        seconds=round(took, 3),
        lines=lines,
    )


def _unfinished(tool: str, status: Status, reason: str, seconds: float) -> SanitizerRun:
    return SanitizerRun(
        tool=tool, status=status, reason=reason, errors=None, cases=0, seconds=round(seconds, 3), lines=[]
    )
