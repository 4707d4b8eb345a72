"""What a part is asked, and how it tells what it found: one JSON object a line."""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from signal import SIGKILL
from typing import Any

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One part's task. limit_s: when it will be killed; every: of how many conformance cases one is run."""

    part: str
    spec: str
    rehearsal: bool
    emulated: bool
    limit_s: float
    jobs: int
    every: int


class Teller:
    """Tells the process that asked; what is not told by the time the part is killed is lost."""

    def __init__(self, request: Request) -> None:
        self.request = request
        self._deadline = time.monotonic() + request.limit_s
        self._out = os.fdopen(os.dup(1), "w", encoding="utf-8")
        os.dup2(2, 1)  # what a library prints must not be taken for a finding

    @property
    def left_s(self) -> float:
        """Seconds until the part is killed."""
        return self._deadline - time.monotonic()

    def put(self, **found: Any) -> None:
        """Fields of the part, in the place of what was told before."""
        self._tell(put=found)

    def add(self, name: str, each: Any) -> None:
        """One more item of a field that is a list; a dataclass as its fields."""
        self._tell(add=[name, asdict(each)])

    def say(self, text: str) -> None:
        """Progress, for people."""
        self._tell(say=text)

    def unusable(self, reason: str) -> None:
        """There is nothing to check: the device does not open."""
        self._tell(unusable=reason)

    def end(self, wrong: list[str]) -> None:
        """Passed, or what is wrong."""
        self.put(status="failed" if wrong else "passed", reason="; ".join(wrong))

    def absent(self, reason: str) -> None:
        """What the part needs is not there, which is no failure."""
        self.put(status="absent", reason=reason)

    def _tell(self, **message: Any) -> None:
        self._out.write(json.dumps(message) + "\n")
        self._out.flush()


def answered() -> Teller:
    """The part's side: takes the request from stdin, and ends with the process that holds the other end of it."""
    request = Request(**json.loads(sys.stdin.readline()))
    lifeline = os.dup(0)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    threading.Thread(target=_end_with, args=(lifeline,), daemon=True).start()
    return Teller(request)


def _end_with(lifeline: int) -> None:
    while os.read(lifeline, 1):
        pass
    os.killpg(0, SIGKILL)
