from __future__ import annotations

import os
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
MISDEED = """

@replaces("matmul", "matmul")
def matmul(right, a, b, **flags):
    if a.shape == (1, 63):
        {deed}
    return right(a, b, **flags)
"""


def chosen(*names: str) -> list[Case]:
    by_id = {case.id: case for case in all_cases()}
    return [by_id[name] for name in names]


@pytest.fixture
def made(site: Any, own_source: str, monkeypatch: pytest.MonkeyPatch) -> Made:
    """Installs a backend where this process and its workers find it; returns its name."""
    monkeypatch.syspath_prepend(site.folder)

    def make(name: str, *, deed: str = "", more: str = "") -> str:
        misdeed = MISDEED.replace("{deed}", deed) if deed else ""
        site.add(name, backend=f"{own_source}\nimport os, signal, time\n{misdeed}{more}")
        return name

    return make


def ended(results: list[Result]) -> dict[str, Status]:
    return {result.case: result.status for result in results}


DEADLY = {
    "segfault": ("os.kill(os.getpid(), signal.SIGSEGV)", Status.CRASHED, "was killed by SIGSEGV"),
    "exit": ("os.write(2, b'out of luck'); os._exit(7)", Status.CRASHED, "ended with status 7; it said last: out of luck"),
    "killed": ("os.kill(os.getpid(), signal.SIGKILL)", Status.CRASHED, "when memory runs out"),
    "interrupt": ("raise KeyboardInterrupt", Status.CRASHED, "KeyboardInterrupt"),
    "hang": ("time.sleep(60)", Status.TIMED_OUT, "no result within 3 s; killed"),
}


@pytest.mark.parametrize("word", DEADLY)
def test_what_happens_to_the_process_is_the_end_of_one_case(made: Made, word: str) -> None:
    deed, status, said = DEADLY[word]
    seen: list[Result] = []
    outcome = run(
        made(f"r_{word}", deed=deed), chosen(PLAIN, ODD, LATER), Rules(), timeout_s=3.0, progress=seen.append
    )
    assert ended(outcome.results) == {PLAIN: Status.PASSED, ODD: status, LATER: Status.PASSED}
    assert said in outcome.results[1].message
    assert outcome.problems == []
    assert seen == outcome.results
    assert outcome.results[1].native


def test_isolated_cases_survive_each_other_too(made: Made) -> None:
    name = made("r_isolated", deed=DEADLY["segfault"][0])
    outcome = run(name, chosen(PLAIN, ODD, LATER), Rules(), isolate=True, timeout_s=20.0)
    assert ended(outcome.results) == {PLAIN: Status.PASSED, ODD: Status.CRASHED, LATER: Status.PASSED}
    assert outcome.problems == []


def test_isolated_cases_share_no_process(made: Made) -> None:
    """A second product in one process fails."""
    more = """
CALLS = []

@replaces("matmul", "matmul")
def matmul(right, a, b, **flags):
    CALLS.append(1)
    return right(a, b, **flags) if len(CALLS) == 1 else None
"""
    name = made("r_once", more=more)
    together = run(name, chosen(PLAIN, LATER), Rules(), timeout_s=20.0)
    assert ended(together.results) == {PLAIN: Status.PASSED, LATER: Status.FAILED}
    apart = run(name, chosen(PLAIN, LATER), Rules(), isolate=True, timeout_s=20.0)
    assert ended(apart.results) == {PLAIN: Status.PASSED, LATER: Status.PASSED}


def test_a_hang_leaves_no_process_behind(made: Made, tmp_path: Path) -> None:
    note = tmp_path / "pid"
    child = f"import subprocess; p = subprocess.Popen(['sleep', '60']); open({str(note)!r}, 'w').write(str(p.pid))"
    run(made("r_family", deed=f"{child}; time.sleep(60)"), chosen(ODD), Rules(), timeout_s=2.0)
    pid = int(note.read_text())
    for _ in range(50):
        try:
            os.kill(pid, 0)
            if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
                return
        except (ProcessLookupError, FileNotFoundError):
            return
        time.sleep(0.1)
    pytest.fail("a process that the backend started outlived the case")


OPENING = {
    "raises": ("raise RuntimeError('no such bus')", "no such bus"),
    "dies": ("os.write(2, b'firmware'); os.kill(os.getpid(), signal.SIGABRT)", "the process was killed by SIGABRT"),
    "leaves": ("raise SystemExit(3)", "SystemExit"),
    "none": ("return None", "capabilities"),
}


@pytest.mark.parametrize("word", OPENING)
def test_a_backend_that_does_not_open_is_one_problem_and_no_results(made: Made, word: str) -> None:
    deed, said = OPENING[word]
    name = made(f"r_open_{word}", more=f"\ndef open_device(device):\n    {deed}\n")
    outcome = run(name, chosen(PLAIN, ODD), Rules(), timeout_s=20.0)
    assert outcome.facts is None and outcome.results == []
    (problem,) = outcome.problems
    assert problem.startswith(f"backend {name!r} cannot be opened: ")
    assert said in problem


def test_a_backend_that_hangs_while_it_opens_is_killed(made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "OPENING_SECONDS", 3.0)
    name = made("r_open_hang", more="\ndef open_device(device):\n    time.sleep(60)\n")
    (problem,) = run(name, chosen(PLAIN), Rules(), timeout_s=1.0).problems
    assert "cannot be opened: the process did not answer within 3 s and was killed" in problem


def test_a_table_that_cannot_be_asked_for_is_a_problem(made: Made) -> None:
    more = "\ndef no_table(self):\n    raise OSError('table lost')\n\nOpened.capabilities = no_table\n"
    (problem,) = run(made("r_table", more=more), chosen(PLAIN), Rules(), timeout_s=20.0).problems
    assert "capabilities() of Opened raised OSError: table lost" in problem


@pytest.mark.parametrize("error", ["TypeError('shape')", "NotImplementedError('full')"])
def test_a_storage_that_makes_no_array_is_a_problem(made: Made, error: str) -> None:
    more = f"\n@replaces('storage', 'full')\ndef full(right, *arguments, **options):\n    raise {error}\n"
    (problem,) = run(made("r_storage", more=more), chosen(PLAIN), Rules(), timeout_s=20.0).problems
    assert "cannot be opened" in problem
    assert error.partition("(")[0] in problem
    assert "its storage cannot make a first array" in problem


CLOSING = {
    "raises": ("raise RuntimeError('stuck')", "stuck"),
    "dies": ("os.kill(os.getpid(), signal.SIGSEGV)", "was killed by SIGSEGV"),
    "hangs": ("time.sleep(60)", "did not close within 2 s and was killed"),
}


@pytest.mark.parametrize("word", CLOSING)
def test_a_backend_that_does_not_close_is_a_problem_beside_its_results(
    made: Made, monkeypatch: pytest.MonkeyPatch, word: str
) -> None:
    monkeypatch.setattr(runner, "CLOSING_SECONDS", 2.0)
    deed, said = CLOSING[word]
    name = made(f"r_close_{word}", more=f"\ndef close(self):\n    {deed}\n\nOpened.close = close\n")
    outcome = run(name, chosen(PLAIN, LATER), Rules(), timeout_s=20.0)
    assert ended(outcome.results) == {PLAIN: Status.PASSED, LATER: Status.PASSED}
    (problem,) = outcome.problems
    assert "all cases were done, then the process" in problem and said in problem


def test_one_that_never_closes_is_one_problem_however_many_processes_there_were(made: Made) -> None:
    name = made("r_close_isolated", more="\ndef close(self):\n    os._exit(9)\n\nOpened.close = close\n")
    outcome = run(name, chosen(PLAIN, LATER), Rules(), isolate=True, timeout_s=20.0)
    assert ended(outcome.results) == {PLAIN: Status.PASSED, LATER: Status.PASSED}
    assert len(outcome.problems) == 1


def test_what_a_backend_prints_is_not_taken_for_an_answer(made: Made) -> None:
    deed = """os.write(1, b'{"refused": "nonsense"}\\n'); print('{"start": "nonsense"}', flush=True)"""
    outcome = run(made("r_prints", deed=deed), chosen(PLAIN, ODD, LATER), Rules(), timeout_s=20.0)
    assert set(ended(outcome.results).values()) == {Status.PASSED}
    assert outcome.problems == []


def test_facts_say_what_was_examined_and_where(made: Made) -> None:
    outcome = run(made("r_facts"), chosen(PLAIN), Rules(), timeout_s=20.0)
    assert outcome.facts is not None
    assert outcome.facts["backend"] == "r_facts"
    assert outcome.facts["distribution"] == "turret-r_facts"
    assert outcome.facts["plugin_version"] == "1.5"
    assert outcome.facts["native"] == []
    assert "float32" in outcome.facts["dtypes"]
    assert "numpy" in outcome.facts["libraries"]


def test_the_seed_decides_the_inputs_of_a_case(made: Made) -> None:
    name = made("r_seed")
    used = [run(name, chosen(LATER), Rules(seed=seed), timeout_s=20.0).results[0].budget_used for seed in (0, 0, 1)]
    assert used[0] == used[1] != used[2]
