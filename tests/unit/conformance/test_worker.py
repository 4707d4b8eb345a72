"""What a careless backend does to its process stays in that process, and is the end of one case at most."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from turret.conformance.execute import Rules
from turret.conformance.results import Status
from turret.conformance.runner import Outcome, run
from turret.conformance.suite import all_cases

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="signals, forks and numbers of files")

FIRST, ODD, LAST = (f"matmul/product/{sizes}-f32" for sizes in ("M1-K1-N1", "M1-K63-N65", "M63-K1-N2"))
DEED = """
import os, signal, subprocess, sys, threading, time

@replaces("matmul", "matmul")
def matmul(right, a, b, **flags):
    if a.shape == (1, 63):
        exec(DEED)
    return right(a, b, **flags)
"""
Ended = Callable[..., Outcome]


@pytest.fixture
def ended(site: Any, own_source: str, monkeypatch: pytest.MonkeyPatch) -> Ended:
    """Runs three cases on a backend that does `deed` in the second, or `close` when it is closed."""
    monkeypatch.syspath_prepend(site.folder)

    def examined(name: str, deed: str = "pass", *, close: str = "pass", timeout_s: float = 20.0) -> Outcome:
        more = f"{DEED}\nDEED = {deed!r}\n\ndef close(self):\n    exec({close!r})\n\nOpened.close = close\n"
        site.add(name, backend=own_source + more)
        cases = [case for case in all_cases() if case.id in (FIRST, ODD, LAST)]
        return run(name, cases, Rules(), timeout_s=timeout_s)

    return examined


def second(outcome: Outcome) -> tuple[Status, str]:
    """Status and message of the second case, where the two others passed and nothing else is wrong."""
    assert outcome.problems == []
    assert [result.case for result in outcome.results] == [FIRST, ODD, LAST]
    first, odd, last = outcome.results
    assert first.status is last.status is Status.PASSED
    return odd.status, odd.message


@pytest.mark.parametrize(
    ("name", "deed", "status", "said"),
    [
        ("left_child", "if os.fork() == 0: time.sleep(60)\nos._exit(3)", Status.CRASHED, "ended with status 3"),
        ("came_back", "os.fork()", Status.PASSED, ""),
        (
            "garbage",
            "for n in range(3, 40):\n  try: os.write(n, b'x')\n  except OSError: pass",
            Status.CRASHED,
            "wrote",
        ),
        ("shut_out", "os.closerange(3, 100); time.sleep(60)", Status.TIMED_OUT, "no result within 4 s"),
        ("shut_and_left", "os.closerange(3, 100)", Status.CRASHED, "ended with status 1"),
        ("no_streams", "os.close(1); os.close(2); sys.stdout = sys.stderr = None", Status.PASSED, ""),
        (
            "thread_stays",
            "threading.Thread(target=time.sleep, args=(60,)).start(); raise KeyboardInterrupt",
            Status.CRASHED,
            "KeyboardInterrupt",
        ),
        (
            "no_text",
            "raise type('Mute', (Exception,), {'__str__': lambda self: 1})()",
            Status.FAILED,
            "Mute: (its text",
        ),
    ],
)
def test_a_deed_in_a_case_is_the_end_of_that_case(
    ended: Ended, name: str, deed: str, status: Status, said: str
) -> None:
    start = time.monotonic()
    got, message = second(ended(f"w_{name}", deed, timeout_s=4.0))
    assert got is status
    assert said in message
    assert time.monotonic() - start < 15


@pytest.mark.parametrize("deed", ["os._exit(0)", "sys.exit(0)"])
def test_leaving_the_process_is_no_way_to_close(ended: Ended, deed: str) -> None:
    outcome = ended(f"w_leaves_{deed[2:3].strip('.')}", close=deed)
    assert [result.status for result in outcome.results] == [Status.PASSED] * 3
    assert outcome.problems == ["all cases were done, then the process ended with status 0"]


def test_what_is_given_later_runs_in_the_same_process(
    site: Any, own_source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    note = tmp_path / "pids"
    deed = f"open({str(note)!r}, 'a').write(f'{{os.getpid()}} ')"
    monkeypatch.syspath_prepend(site.folder)
    site.add("w_further", backend=f"{own_source}{DEED}\nDEED = {deed!r}\n")
    by_id = {case.id: case for case in all_cases()}
    later = [[ODD, LAST], [ODD]]
    outcome = run(
        "w_further",
        [by_id[FIRST]],
        Rules(),
        further=lambda: [by_id[name] for name in later.pop(0)] if later else (),
    )
    assert [result.case for result in outcome.results] == [FIRST, ODD, LAST, ODD]
    assert outcome.problems == []
    pids = note.read_text().split()
    assert len(pids) > 1 and len(set(pids)) == 1


@pytest.mark.parametrize("isolate", [False, True])
def test_a_crash_costs_one_case_of_what_is_given_later(
    site: Any, own_source: str, monkeypatch: pytest.MonkeyPatch, isolate: bool
) -> None:
    name = f"w_further_{isolate}".lower()
    monkeypatch.syspath_prepend(site.folder)
    site.add(name, backend=f"{own_source}{DEED}\nDEED = 'os._exit(3)'\n")
    by_id = {case.id: case for case in all_cases()}
    later = [[ODD, LAST], [ODD], [FIRST]]
    outcome = run(
        name,
        [by_id[FIRST]],
        Rules(),
        isolate=isolate,
        further=lambda: [by_id[name] for name in later.pop(0)] if later else (),
    )
    passed, crashed = Status.PASSED, Status.CRASHED
    assert [result.case for result in outcome.results] == [FIRST, ODD, LAST, ODD, FIRST]
    assert [result.status for result in outcome.results] == [passed, crashed, passed, crashed, passed]
    assert outcome.problems == []


def test_a_long_message_is_cut_in_the_middle(ended: Ended) -> None:
    status, message = second(ended("w_endless", "raise ValueError('begin' + 'x' * 3_000_000 + 'end')"))
    assert status is Status.FAILED
    assert len(message) < 5000
    assert "begin" in message and "end (at " in message


def test_a_path_that_is_no_text_is_left_to_the_import_system(ended: Ended, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path, Path("/nowhere")])
    assert second(ended("w_odd_path"))[0] is Status.PASSED


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL])
def test_nothing_is_left_where_the_run_itself_is_killed(
    site: Any, own_source: str, tmp_path: Path, how: signal.Signals
) -> None:
    """A terminated process cannot tidy up: the worker notices that nobody waits for it."""
    note = tmp_path / "pids"
    deed = (
        f"child = subprocess.Popen(['sleep', '60']); open({str(note)!r}, 'w').write(f'{{os.getpid()}} {{child.pid}} ')"
    )
    site.add("w_orphan", backend=f"{own_source}{DEED}\nDEED = {deed!r} + '; time.sleep(60)'\n")
    environment = {**os.environ, "PYTHONPATH": str(site.folder)}
    command = [sys.executable, "-m", "turret", "conformance", "w_orphan", "-k", ODD]
    done = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    assert soon(lambda: note.exists() and note.read_text().endswith(" "))
    done.send_signal(how)
    assert done.wait() == -how
    assert soon(lambda: not any(map(is_running, note.read_text().split())))


def soon(holds: Callable[[], bool]) -> bool:
    for _ in range(1200):
        if holds():
            return True
        time.sleep(0.05)
    return False


def is_running(pid: str) -> bool:
    try:
        return (
            subprocess.run(["ps", "-o", "stat=", "-p", pid], capture_output=True, text=True).stdout.strip()[:1]
            not in "Z"
        )
    except FileNotFoundError:
        pytest.skip("no ps here")
