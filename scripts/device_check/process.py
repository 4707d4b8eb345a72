"""One part in a process of its own, with a time limit; whatever becomes of it, what it told is kept."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import asdict
from typing import IO, Any

from .request import Request

LAST_BYTES = 1 << 14
LAST_LINES = 2
CLOSING_S = 5.0


class Unusable(Exception):
    """The device does not open; the text says why."""


def run(request: Request, found: dict[str, Any], environment: dict[str, str], say: Callable[[str], None]) -> None:
    """Lets the part fill in `found`, its fields; the part's seconds and how it ended are there afterwards.

    Raises: Unusable; KeyboardInterrupt, after the process was killed and marked as interrupted.
    """
    began = time.monotonic()
    with tempfile.TemporaryFile() as noise:
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "device_check.work"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=noise,
            env=environment,
            start_new_session=True,
        )
        lines: queue.Queue[bytes | None] = queue.Queue()
        listener = threading.Thread(target=_converse, args=(process, request, lines), daemon=True)
        listener.start()
        try:
            ended = _listen(process, lines, request.limit_s, found, say)
        except KeyboardInterrupt:
            found |= {"status": "failed", "reason": "interrupted"}
            raise
        finally:
            _kill(process)
            listener.join(CLOSING_S)
            _close(process)
            found["seconds"] = round(time.monotonic() - began, 3)
        if not ended:
            found |= {"status": "failed", "reason": f"out of time after {request.limit_s:.0f} s"}
        elif process.returncode:
            found |= {"status": "failed", "reason": f"the process {_ending(process.returncode)}: {_last_words(noise)}"}


def _listen(
    process: subprocess.Popen[bytes],
    lines: queue.Queue[bytes | None],
    limit_s: float,
    found: dict[str, Any],
    say: Callable[[str], None],
) -> bool:
    """Whether the process came to its end within its time."""
    deadline = time.monotonic() + limit_s
    while True:
        try:
            line = lines.get(timeout=max(0.0, deadline - time.monotonic()))
        except queue.Empty:
            return False
        if line is None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(max(0.1, deadline - time.monotonic()))
            return process.returncode is not None
        if not line.endswith(b"\n"):
            continue  # it died in the middle of it
        told = json.loads(line)
        found.update(told.get("put", {}))
        if "add" in told:
            name, each = told["add"]
            found[name].append(each)
        if "say" in told:
            say(told["say"])
        if "unusable" in told:
            raise Unusable(told["unusable"])


def _converse(process: subprocess.Popen[bytes], request: Request, lines: queue.Queue[bytes | None]) -> None:
    """The stream of the request stays open: its end tells the process that nobody waits for it any more."""
    assert process.stdin is not None and process.stdout is not None
    with contextlib.suppress(BrokenPipeError):
        process.stdin.write(json.dumps(asdict(request)).encode() + b"\n")
        process.stdin.flush()
    for line in process.stdout:
        lines.put(line)
    lines.put(None)


def _kill(process: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _close(process: subprocess.Popen[bytes]) -> None:
    for stream in (process.stdin, process.stdout):
        if stream is not None:
            with contextlib.suppress(BrokenPipeError):  # of a request that was never read
                stream.close()


def _ending(status: int) -> str:
    return f"was killed by {signal.Signals(-status).name}" if status < 0 else f"ended with status {status}"


def _last_words(noise: IO[bytes]) -> str:
    size = noise.seek(0, os.SEEK_END)
    noise.seek(max(0, size - LAST_BYTES))
    text = noise.read().decode(errors="replace")
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return " | ".join(lines[-LAST_LINES:]) or "nothing on stderr"
