"""Processes that are started only to be survived: how they are ended, and how they ended."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from typing import Any


def kill(process: subprocess.Popen[Any]) -> None:
    """Kills a process that was started in a session of its own, and all that it started itself."""
    if sys.platform == "win32":
        process.kill()
    else:
        with contextlib.suppress(ProcessLookupError):  # it has ended, and so has everything it started
            os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def ending(status: int) -> str:
    """What became of a process, from its exit status: `was killed by SIGSEGV`, `ended with status 1`."""
    return f"was killed by {signal.Signals(-status).name}" if status < 0 else f"ended with status {status}"
