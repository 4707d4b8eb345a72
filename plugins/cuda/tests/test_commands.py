"""What the commands say of this backend: emulated is called so everywhere, and host work is what is listed as such."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from turret.conformance.execute import Rules, execute
from turret.conformance.results import Status
from turret.conformance.subject import Subject
from turret.conformance.suite import all_cases
from turret.registry import open_backend

Run = Callable[..., subprocess.CompletedProcess[str]]
TINY = (
    *("--layers", "1", "--heads", "2", "--width", "16", "--context", "16", "--batch", "2", "--steps", "2"),
    *("--warmup", "1", "--eval-every", "2", "--eval-batches", "1", "--log", "json"),
)
SAMPLE = 2  # cases of every slot


@pytest.fixture
def turret(run_python: Run) -> Run:
    """The command with no other plugins than these two: probing the others takes its time."""
    return lambda *words, **variables: run_python("-m", "turret", *words, TURRET_PLUGINS="cuda,cpu", **variables)


def slots_on_the_host(turret: Run) -> set[str]:
    facts = json.loads(turret("backends", "cuda", "--json").stdout)
    return {line.partition(":")[0].partition(".")[0] for line in facts["on the host"]}


def test_what_is_listed_as_on_the_host_is_what_goes_through_the_host_and_nothing_else(turret: Run) -> None:
    subject = Subject(open_backend("cuda:emulated"))
    found: dict[str, set[Status]] = {}
    taken: dict[str, int] = {}
    for case in all_cases():
        taken[case.capability] = taken.get(case.capability, 0) + 1
        if taken[case.capability] > SAMPLE or case.capability in ("lifecycle", "models"):
            continue
        result = execute(case, subject, Rules(forbid_host=True))
        if result.status is Status.FAILED:
            assert "went through the host" in result.message, result.message
        found.setdefault(case.capability, set()).add(result.status)
    assert len(found) >= 19
    assert {slot for slot, statuses in found.items() if statuses == {Status.FAILED}} == {"random"}
    assert [slot for slot, statuses in found.items() if Status.FAILED in statuses] == ["random"]
    assert slots_on_the_host(turret) == {"random"}


def test_auto_passes_the_emulator_over_and_doctor_says_why(turret: Run) -> None:
    done = turret("doctor", "--json")
    found = json.loads(done.stdout)
    (cuda,) = (each for each in found["candidates"] if each["name"] == "cuda")
    assert done.returncode == 0
    assert not found["choice"].startswith("cuda")
    assert "ask for `cuda:emulated`" in cuda["blocked_by"]


@pytest.mark.parametrize("word", ["cuda", "cuda:9"])
def test_a_gpu_is_refused_where_there_is_only_the_emulator(turret: Run, tmp_path: Path, word: str) -> None:
    done = turret("doctor", TURRET_BACKEND=word)
    assert done.returncode == 1
    assert f"choice: none (TURRET_BACKEND={word}, but this CuPy is the emulator of turret's tests" in done.stdout
    assert "`cuda:emulated`" in done.stdout
    done = turret("train", "--backend", word, "--out", str(tmp_path / "run"), *TINY)
    assert done.returncode == 1
    assert done.stdout == ""
    assert done.stderr.startswith("error: ") and done.stderr.count("\n") == 1
    assert "`cuda:emulated`" in done.stderr
    assert not (tmp_path / "run").exists()


def test_a_run_says_from_its_beginning_to_its_end_that_it_was_emulated(turret: Run, tmp_path: Path) -> None:
    done = turret("train", "--backend", "cuda:emulated", "--out", str(tmp_path / "run"), *TINY)
    assert done.returncode == 0, done.stderr
    events: list[dict[str, Any]] = [json.loads(line) for line in done.stderr.splitlines() if line.startswith("{")]
    (start,) = (each for each in events if each["event"] == "train_start")
    assert start["device"] == "emulated on the host, no GPU"
    result = json.loads(done.stdout)
    assert (result["backend"], result["device"]) == ("cuda:emulated", "emulated on the host, no GPU")


def test_a_report_says_that_it_was_emulated(turret: Run, tmp_path: Path) -> None:
    report, page = tmp_path / "report.json", tmp_path / "report.md"
    done = turret(
        *("conformance", "cuda:emulated", "--capability", "layout", "-k", "layout/pad*"),
        *("--json", str(report), "--markdown", str(page)),
    )
    assert done.returncode == 0, done.stderr
    assert "device emulated on the host, no GPU (cuda:emulated)" in done.stdout
    for path in (report, page):
        assert "emulated on the host, no GPU" in path.read_text(encoding="utf-8")
