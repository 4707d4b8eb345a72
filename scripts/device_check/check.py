"""The whole check: its parts one after the other within one time limit, and the file that grows with them."""

from __future__ import annotations

import datetime
import json
import os
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from . import process
from .request import ROOT, Request
from .schema import SCHEMA, Benchmarks, Conformance, DeviceCheck, Facts, Part, Sanitizer, Training
from .source_tree import environment
from .validate import problems

LIMIT_S = 480.0
LIMITS_S = {"facts": 60.0, "training": 90.0, "conformance": 200.0, "benchmarks": 140.0, "sanitizer": 150.0}
"""What each part may take where `LIMIT_S` is the whole; they seldom need it all."""
PARTS = tuple(LIMITS_S)
CLASSES: dict[str, type[Part]] = {
    "facts": Facts,
    "training": Training,
    "conformance": Conformance,
    "benchmarks": Benchmarks,
    "sanitizer": Sanitizer,
}
RESERVE_S = 3.0
"""Left at the end for killing and writing."""
LEAST_S = 5.0
"""Less than this is not worth the start of a part."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What to check, and how."""

    spec: str
    emulated: bool
    rehearsal: bool
    parts: tuple[str, ...]
    jobs: int
    every: int
    limit_s: float


class Check:
    """One run into one file, which is whole whenever it is looked at."""

    def __init__(self, wanted: Wanted, out: Path) -> None:
        self.wanted, self.out = wanted, out
        self._began, self._started = time.monotonic(), datetime.datetime.now(datetime.UTC)
        self._commit = _git("rev-parse", "HEAD")
        status = None if self._commit is None else _git("status", "--porcelain")
        self._changed = None if status is None else bool(status)
        self.found = {name: asdict(cls(status="skipped", reason="not begun")) for name, cls in CLASSES.items()}
        for name in set(PARTS) - set(wanted.parts):
            self.found[name]["reason"] = "not asked for"

    def run(self) -> bool:
        """Whether everything passed. Raises: process.Unusable, and nothing is written; KeyboardInterrupt."""
        stopped = "out of time"
        with TemporaryDirectory() as folder:
            variables, missing = environment(Path(folder))
            self.found["facts"]["from_source"] = missing
            try:
                for part in self.wanted.parts:
                    self._part(part, variables)
            except KeyboardInterrupt:
                stopped = "interrupted"
                raise
            finally:
                if self._begun("facts"):
                    self._finish(stopped)
        return self._passed()

    def document(self, verdict: str) -> dict[str, Any]:
        """The file's contents."""
        found = DeviceCheck.__dataclass_fields__
        head = {
            "schema": SCHEMA,
            "spec": self.wanted.spec,
            "emulated": self.wanted.emulated,
            "rehearsal": self.wanted.rehearsal,
            "passed": self._passed(),
            "verdict": verdict,
            "left_out": self._left_out(),
            "commit": self._commit,
            "changed": self._changed,
            "started": self._started.isoformat(timespec="seconds"),
            "seconds": round(time.monotonic() - self._began, 3),
            "limit_s": self.wanted.limit_s,
        }
        return {name: head[name] if name in head else self.found[name] for name in found}

    def _part(self, part: str, variables: dict[str, str]) -> None:
        whole = self.wanted.limit_s
        left = whole - RESERVE_S - (time.monotonic() - self._began)
        limit = min(LIMITS_S[part] * whole / LIMIT_S, left)
        if left < LEAST_S:
            self.found[part]["reason"] = "out of time"
            return
        request = Request(
            part=part,
            spec=self.wanted.spec,
            rehearsal=self.wanted.rehearsal,
            emulated=self.wanted.emulated,
            limit_s=limit,
            jobs=self.wanted.jobs,
            every=self.wanted.every,
        )
        self._say(f"{part}: {limit:.0f} s at most")
        process.run(request, self.found[part], variables, lambda text: self._say(f"{part}: {text}"))
        reason = self.found[part]["reason"]
        self._say(f"{part}: {self.found[part]['status']}{f': {reason}' if reason else ''}")
        self._write("not finished")

    def _finish(self, stopped: str) -> None:
        for part in self.wanted.parts:
            if not self._begun(part):
                self.found[part]["reason"] = stopped
        verdict = self._verdict()
        self._write(verdict)
        for wrong in problems(self.document(verdict), DeviceCheck):
            self._say(f"the file is not as it is described: {wrong}")
        self._say(f"{verdict}; see {self.out}")

    def _begun(self, part: str) -> bool:
        return bool(self.found[part]["reason"] != "not begun")

    def _passed(self) -> bool:
        return all(self.found[part]["status"] in ("passed", "absent") for part in self.wanted.parts)

    def _verdict(self) -> str:
        words = [f"{part} {self.found[part]['status']}" for part in self.wanted.parts]
        what = "rehearsal on the emulator" if self.wanted.emulated else self.wanted.spec
        return f"{what}: {'passed' if self._passed() else 'FAILED'}: {', '.join(words)}"

    def _left_out(self) -> list[str]:
        wanted = self.wanted
        out = [f"the part {part}" for part in PARTS if part not in wanted.parts]
        if wanted.every > 1 and "conformance" in wanted.parts:
            out.append(f"conformance: all but one of {wanted.every} cases")
        if wanted.rehearsal:
            out.append("sizes that a GPU is measured at: training and benchmarks are small")
        if wanted.emulated:
            out.append("times that mean something, and shares and ratios of them")
            out.append("compute-sanitizer and PyTorch, which need a GPU")
        return out

    def _write(self, verdict: str) -> None:
        # Written beside and moved: whoever reads it meanwhile finds a whole file.
        beside = self.out.with_name(f".{self.out.name}.{os.getpid()}")
        beside.write_text(json.dumps(self.document(verdict), indent=1) + "\n", encoding="utf-8")
        beside.replace(self.out)

    def _say(self, text: str) -> None:
        print(f"[{time.monotonic() - self._began:5.0f} s] {text}", file=sys.stderr, flush=True)


def _git(*arguments: str) -> str | None:
    try:
        command = ["git", "-C", str(ROOT), *arguments]
        done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None
