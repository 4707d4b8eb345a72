from __future__ import annotations

import os
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from turret.conformance import runner
from turret.conformance.case import Case
from turret.conformance.execute import Rules
from turret.conformance.results import Result, Status
from turret.conformance.runner import run
from turret.conformance.suite import all_cases

Made = Callable[..., str]
PLAIN = "matmul/product/M1-K1-N1-f32"
ODD = "matmul/product/M1-K63-N65-f32"
LATER = "matmul/product/M63-K1-N2-f32"
LAST = "matmul/product/M7-K33-N18-f32"
# (1, K) and so on: the first operand of the case whose product goes wrong.
DEEDS = """

@replaces("matmul", "matmul")
def matmul(right, a, b, **flags):
    deed = DEEDS.get(a.shape)
    if deed is not None:
        exec(deed)
    return right(a, b, **flags)
"""


def chosen(*names: str) -> list[Case]:
    """In the order of the suite."""
    return [case for case in all_cases() if case.id in names]


@pytest.fixture
def made(site: Any, own_source: str, monkeypatch: pytest.MonkeyPatch) -> Made:
    """Installs a backend where this process and its workers find it; returns its name."""
    monkeypatch.syspath_prepend(site.folder)

    def make(name: str, more: str = "", *, deeds: dict[tuple[int, ...], str] | None = None) -> str:
        misdeeds = f"{DEEDS}\nDEEDS = {deeds!r}\n" if deeds else ""
        site.add(name, backend=f"{own_source}\nimport os, signal, subprocess, time\n{misdeeds}{more}")
        return name

    return make


def ended(results: list[Result]) -> dict[str, Status]:
    return {result.case: result.status for result in results}


def is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (ProcessLookupError, FileNotFoundError):
        return False


def test_what_happens_to_the_process_is_the_end_of_one_case(made: Made, tmp_path: Path) -> None:
    note = tmp_path / "pid"
    child = f"child = subprocess.Popen(['sleep', '99']); open({str(note)!r}, 'w').write(str(child.pid))"
    fates: dict[str, tuple[tuple[int, ...], str, Status, str]] = {
        "M1-K63-N65": (
            (1, 63),
            "os.kill(os.getpid(), signal.SIGSEGV)",
            Status.CRASHED,
            "was killed by SIGSEGV; it was at: ",
        ),
        "M63-K1-N2": ((63, 1), f"{child}; time.sleep(99)", Status.TIMED_OUT, "no result within 4 s; killed"),
        "M65-K64-N1": (
            (65, 64),
            "os.write(2, b'out of luck'); os._exit(7)",
            Status.CRASHED,
            "ended with status 7; it said last: out of luck",
        ),
        "M3-K1000-N5": ((3, 1000), "os.kill(os.getpid(), signal.SIGKILL)", Status.CRASHED, "when memory runs out"),
        "M2-K2049-N33": ((2, 2049), "raise KeyboardInterrupt", Status.CRASHED, "KeyboardInterrupt"),
        "M8-K16-N32": ((8, 16), "raise SystemExit(3)", Status.FAILED, "raised SystemExit: 3"),
        "M63-K65-N64": (
            (63, 65),
            """os.write(1, b'{"refused": "nonsense"}\\n'); print('{"start": "nonsense"}', flush=True)""",
            Status.PASSED,
            "",
        ),
    }
    name = made("r_deadly", deeds={shape: deed for shape, deed, *_ in fates.values()})
    ids = [PLAIN, *(f"matmul/product/{sizes}-f32" for sizes in fates), LAST]
    seen: list[Result] = []
    outcome = run(name, chosen(*ids), Rules(), timeout_s=4.0, progress=seen.append)
    assert outcome.problems == []
    assert [result.case for result in outcome.results] == [case.id for case in chosen(*ids)]
    assert seen == outcome.results
    assert all(result.native for result in outcome.results)
    by_id = {result.case: result for result in outcome.results}
    assert by_id[PLAIN].status is by_id[LAST].status is Status.PASSED
    for sizes, (_, _, status, said) in fates.items():
        result = by_id[f"matmul/product/{sizes}-f32"]
        assert result.status is status, result
        assert said in result.message
    assert re.search(r'backend\.py", line \d+ in matmul < ', by_id["matmul/product/M1-K63-N65-f32"].message)
    for _ in range(50):
        if not is_running(int(note.read_text())):
            return
        time.sleep(0.1)
    pytest.fail("a process that the backend started outlived the case")


def test_isolated_cases_share_no_process_and_survive_each_other(made: Made) -> None:
    """A second product in one process fails."""
    more = """
CALLS = []

@replaces("matmul", "matmul")
def matmul(right, a, b, **flags):
    CALLS.append(1)
    if a.shape == (1, 63):
        os.kill(os.getpid(), signal.SIGSEGV)
    return right(a, b, **flags) if len(CALLS) == 1 else None

def close(self):
    os._exit(9)

Opened.close = close
"""
    name = made("r_once", more)
    together = run(name, chosen(PLAIN, LATER), Rules(), timeout_s=20.0)
    assert ended(together.results) == {PLAIN: Status.PASSED, LATER: Status.FAILED}
    apart = run(name, chosen(PLAIN, ODD, LATER), Rules(), isolate=True, timeout_s=20.0)
    assert ended(apart.results) == {PLAIN: Status.PASSED, ODD: Status.CRASHED, LATER: Status.PASSED}
    # each of two processes broke off while it closed: one line says so
    assert apart.problems == ["all cases were done, then the process ended with status 9"]


NOT_OPENING = {
    "raises": ("def open_device(device):\n    raise RuntimeError('no such bus')", "no such bus"),
    "dies": (
        "def open_device(device):\n    os.write(2, b'bad firmware')\n    os.kill(os.getpid(), signal.SIGABRT)",
        "the process was killed by SIGABRT; it said last: bad firmware",
    ),
    "lost_table": (
        "def lost(self):\n    raise OSError('table lost')\n\nOpened.capabilities = lost",
        "capabilities() of Opened raised OSError: table lost",
    ),
    "no_array": (
        "@replaces('storage', 'full')\ndef full(right, *a, **options):\n    raise NotImplementedError('not yet')",
        "its storage cannot make a first array: NotImplementedError: not yet",
    ),
    "hangs": (
        "def open_device(device):\n    time.sleep(99)",
        "the process did not answer within 4 s and was killed",
    ),
}


@pytest.mark.parametrize("word", NOT_OPENING)
def test_a_backend_that_does_not_open_is_one_problem_and_no_results(
    made: Made, monkeypatch: pytest.MonkeyPatch, word: str
) -> None:
    more, said = NOT_OPENING[word]
    monkeypatch.setattr(runner, "OPENING_SECONDS", 4.0 if word == "hangs" else 60.0)
    name = made(f"r_open_{word}", f"\n{more}\n")
    outcome = run(name, chosen(PLAIN, ODD), Rules(), timeout_s=1.0)
    assert outcome.facts is None and outcome.results == []
    (problem,) = outcome.problems
    assert problem.startswith(f"backend {name!r} cannot be opened: ")
    assert said in problem


NOT_CLOSING = {
    "raises": ("raise RuntimeError('stuck')", "all cases were done, then the process ended with status 1"),
    "says": ("from turret.spi import OutOfMemory; raise OutOfMemory('stuck')", "then it did not close: stuck"),
    "hangs": ("time.sleep(99)", "then the process did not close within 2 s and was killed"),
}


@pytest.mark.parametrize("word", NOT_CLOSING)
def test_a_backend_that_does_not_close_is_a_problem_beside_its_results(
    made: Made, monkeypatch: pytest.MonkeyPatch, word: str
) -> None:
    monkeypatch.setattr(runner, "CLOSING_SECONDS", 2.0 if word == "hangs" else 60.0)
    deed, said = NOT_CLOSING[word]
    name = made(f"r_close_{word}", f"\ndef close(self):\n    {deed}\n\nOpened.close = close\n")
    outcome = run(name, chosen(PLAIN, LATER), Rules(), timeout_s=20.0)
    assert ended(outcome.results) == {PLAIN: Status.PASSED, LATER: Status.PASSED}
    (problem,) = outcome.problems
    assert said in problem


def test_facts_say_what_was_examined_and_where(made: Made) -> None:
    facts = run(made("r_facts"), chosen(PLAIN), Rules(), timeout_s=20.0).facts
    assert facts is not None
    assert (facts["backend"], facts["distribution"], facts["plugin_version"]) == ("r_facts", "turret-r_facts", "1.5")
    assert facts["native"] == [] and "float32" in facts["dtypes"] and "numpy" in facts["libraries"]
