"""Runs cases in a process of their own and survives what happens to it."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any

from turret.registry.processes import ending, kill
from turret.spi import REQUIRED_SLOTS

from .case import Case
from .execute import Rules
from .results import Result, Status

log = logging.getLogger("turret")

WORKER = Path(__file__).with_name("worker.py")
OPENING_SECONDS = 120.0
TIMEOUT_S = 120.0
ADVICE_SECONDS = 60.0
NOTICE_SECONDS = 10.0
CLOSING_SECONDS = 20.0
POLL_SECONDS = 0.2
LAST_LINES = 3
LAST_BYTES = 1 << 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What a run found. facts: None where the backend could not be opened. problems: what is no case but is wrong."""

    facts: dict[str, Any] | None
    results: list[Result]
    problems: list[str]
    advice: list[str]


Progress = Callable[[Result], None]
Waiting = Callable[[str, float], None]
Further = Callable[[], Sequence[Case]]


def run(
    backend: str,
    cases: Sequence[Case],
    rules: Rules,
    *,
    isolate: bool = False,
    timeout_s: float = TIMEOUT_S,
    record: Path | None = None,
    advise: bool = False,
    further: Further = lambda: (),
    progress: Progress = lambda result: None,
    waiting: Waiting = lambda case, seconds: None,
) -> Outcome:
    """All cases in one worker process, which is replaced when it dies; with `isolate` each case in one of its own.

    timeout_s: for one case, in seconds; then it is killed and counted as timed out. record: a folder for the script of
    the one case. advise: also measure which derived slot would gain most from being native; whatever comes of that
    changes no verdict. further: asked for more cases when all are done, again and again until there are none. waiting:
    told now and then which case is running for how many seconds.
    """
    facts: dict[str, Any] | None = None
    results: list[Result] = []
    problems: list[str] = []
    advice: list[str] = []
    left = [case.id for case in cases]
    while left:
        batch = left[:1] if isolate else left.copy()
        worker = Worker(backend, batch, rules, record)
        done = 0
        try:
            for kind, told in worker.answers(timeout_s):
                if kind == "opened":
                    facts = facts or told
                elif kind == "result":
                    results.append(told)
                    progress(told)
                    done += 1
                elif kind == "waiting":
                    waiting(*told)
                elif kind == "idle":
                    more = [] if isolate else [case.id for case in further()]
                    batch += more
                    left += more
                    worker.give(more)
                elif worker.is_open:
                    count = "all cases" if done == len(batch) else f"{done} of {len(batch)} cases"
                    refused = f"it did not close: {told}" if done == len(batch) else told
                    what = f"the process {told}" if kind == "broken off" else refused
                    if (text := f"{count} were done, then {what}") not in problems:
                        problems.append(text)
                else:
                    what = f"the process {told}" if kind == "broken off" else told
                    problems.append(f"backend {backend!r} cannot be opened: {what}")
                    return Outcome(facts=facts, results=results, problems=problems, advice=advice)
        finally:
            worker.end()
        left = left[max(done, 1) :] or [case.id for case in further()]
    # a slot that fails may well raise when it is timed
    if advise and not any(result.status.bad for result in results):
        advice = _advice(backend, rules)
    return Outcome(facts=facts, results=results, problems=problems, advice=advice)


def _advice(backend: str, rules: Rules) -> list[str]:
    """Lines of advice from a process of its own, or why there are none."""
    log.info("measuring speed, to say which slot to make native next")
    worker = Worker(backend, [], rules, advise=True)
    try:
        for kind, told in worker.answers(ADVICE_SECONDS, opening_s=ADVICE_SECONDS):
            if kind == "advice":
                return list(told)
            if kind in ("refused", "broken off"):
                return [f"no advice on speed: the process that measured it {told}"]
    finally:
        worker.end()
    return ["no advice on speed: the process that measured it said nothing"]


class Worker:
    """One worker process and what it says, with a time limit on every answer."""

    def __init__(
        self, backend: str, cases: Sequence[str], rules: Rules, record: Path | None = None, *, advise: bool = False
    ) -> None:
        self.is_open = False
        self._native: set[str] = set(REQUIRED_SLOTS)
        self._noise = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as the process that writes to it
        self._process = subprocess.Popen(
            # -P: the folder of the program must not be searched for modules.
            [sys.executable, "-P", str(WORKER)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._noise,
            start_new_session=True,
        )
        request = {
            "path": [each for each in sys.path if isinstance(each, str)],  # as the import system does
            "backend": backend,
            "cases": list(cases),
            "rules": asdict(rules),
            "record": str(record.absolute()) if record is not None else "",
            "advise": advise,
        }
        self._lines: queue.Queue[bytes | None] = queue.Queue()
        threading.Thread(target=self._converse, args=(json.dumps(request).encode(),), daemon=True).start()

    def answers(self, timeout_s: float, *, opening_s: float | None = None) -> Iterator[tuple[str, Any]]:
        """What it said and what became of it, as (kind, value).

        opened: facts. refused: why the backend does not open or close. result: a Result. idle: it waits for `give`.
        advice: lines. waiting: the running case and for how many seconds. broken off: what happened to the process.
        """
        running: str | None = None
        closing, closed, waited = False, False, 0.0
        patience = OPENING_SECONDS if opening_s is None else opening_s
        while True:
            limit = CLOSING_SECONDS if closing else timeout_s if running else max(timeout_s, patience)
            wait = min(limit - waited, NOTICE_SECONDS)
            try:
                line = self._next(wait)
            except queue.Empty:
                waited += wait
                if waited < limit:
                    if running:
                        yield "waiting", (running, waited)
                    continue
                if running:
                    yield (
                        "result",
                        self._ended(running, Status.TIMED_OUT, _too_long(limit), limit),
                    )
                else:
                    yield "broken off", f"did not {'close' if closing else 'answer'} within {limit:g} s and was killed"
                return
            waited = 0.0
            if line is None:
                if running:
                    yield "result", self._ended(running, Status.CRASHED, f"the process {self._death()}")
                elif not closed or self._process.wait() != 0:
                    yield "broken off", self._death()
                return
            told = _answer(line)
            if told is None:
                what = "wrote into a file that it had not opened: the one for its answers"
                crash = f"the process {what}"
                yield ("result", self._ended(running, Status.CRASHED, crash)) if running else ("broken off", what)
                return
            if "start" in told:
                running = told["start"]
            elif "result" in told:
                running = None
                yield "result", Result.from_json(told["result"])
            elif "opened" in told:
                self.is_open = True
                self._native |= set(told["opened"]["native"])
                yield "opened", told["opened"]
            elif "idle" in told:
                yield "idle", None
            elif "refused" in told:
                yield "refused", told["refused"]
                return
            elif "advice" in told:
                yield "advice", told["advice"]
            elif "closing" in told:
                closing = True
            elif "closed" in told:
                closed = True

    def give(self, cases: Sequence[str]) -> None:
        """Answers that it is idle: what it is to run now, nothing for the end."""
        stream: IO[bytes] = self._process.stdin  # type: ignore[assignment]  # it is a pipe
        with contextlib.suppress(OSError, ValueError):  # it died, and the stream may be closed: its answers end
            stream.write(json.dumps(cases).encode() + b"\n")
            stream.flush()

    def end(self) -> None:
        """Kills what is left of the process and of what it started."""
        kill(self._process)
        self._noise.close()

    def _next(self, limit: float) -> bytes | None:
        """The next line, None at the end: of the process, for what it forked may hold its answers open.

        Raises: queue.Empty after `limit` seconds.
        """
        deadline = time.monotonic() + limit
        while (left := deadline - time.monotonic()) > 0:
            ended = self._process.poll() is not None
            with contextlib.suppress(queue.Empty, subprocess.TimeoutExpired):
                line = self._lines.get(timeout=min(left, POLL_SECONDS))
                if line is None:  # or a backend has closed its answers and goes on without
                    self._process.wait(min(left, POLL_SECONDS))
                return line
            if ended:
                return None
        raise queue.Empty

    def _converse(self, request: bytes) -> None:
        """The stream of the request stays open: its end tells the process that nobody waits for it any more."""
        streams: tuple[IO[bytes], IO[bytes]] = (self._process.stdin, self._process.stdout)  # type: ignore[assignment]
        with contextlib.suppress(BrokenPipeError):  # it died at once: the end of its answers says so
            streams[0].write(request + b"\n")
            streams[0].flush()
        with streams[1] as answers:
            for line in answers:
                self._lines.put(line if line.endswith(b"\n") else None)
        self._lines.put(None)
        self._process.wait()
        with contextlib.suppress(BrokenPipeError):
            streams[0].close()

    def _ended(self, case: str, status: Status, message: str, seconds: float = 0.0) -> Result:
        capability = case.split("/", 1)[0]
        return Result(
            case=case,
            capability=capability,
            status=status,
            message=message,
            seconds=seconds,
            native=capability in self._native,
        )

    def _death(self) -> str:
        """How the process ended, the last it said, and where it was."""
        status = self._process.wait()
        how = ending(status)
        if status == -getattr(signal, "SIGKILL", 9):
            how += " (the system does that when memory runs out)"
        self._noise.seek(max(0, self._noise.seek(0, os.SEEK_END) - LAST_BYTES))
        said, frames = _last_words(self._noise.read().decode(errors="replace"))
        how += f"; it said last: {' | '.join(said)}" if said else ""
        return how + (f"; it was at: {' < '.join(frames)}" if frames else "")


def _answer(line: bytes) -> dict[str, Any] | None:
    """None where it is none."""
    try:
        told = json.loads(line)
    except ValueError:
        return None
    return told if isinstance(told, dict) else None


def _last_words(noise: str) -> tuple[list[str], list[str]]:
    """(the last lines before a dump of `faulthandler`, the innermost frames of the dump)."""
    said, _, dump = noise.partition("Fatal Python error")
    _, _, current = dump.partition("Current thread")
    frames = [line.strip().removeprefix("File ") for line in current.splitlines() if line.startswith("  File ")]
    return [line for line in said.splitlines() if line.strip()][-LAST_LINES:], frames[:LAST_LINES]


def _too_long(limit: float) -> str:
    return f"no result within {limit:g} s; killed. Where the backend is only slow, give it more with --timeout-s"
