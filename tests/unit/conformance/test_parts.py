"""Several workers find what one finds, in the same order, and lose nothing when one of them dies."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from turret.conformance import parts as module
from turret.conformance.case import Case
from turret.conformance.execute import Rules
from turret.conformance.parts import run_in_parts
from turret.conformance.profiles import select
from turret.conformance.results import Result, Status
from turret.conformance.runner import Outcome, run


@pytest.mark.parametrize("jobs", [2, 6])
def test_parts_find_what_the_whole_finds(jobs: int) -> None:
    cases = select(profile="full", capabilities=("softmax", "rope"), pattern="")
    told: list[Result] = []
    parts = run_in_parts("cpu", cases, Rules(seed=3), jobs=jobs, progress=told.append)
    whole = run("cpu", cases, Rules(seed=3))
    assert [r.case for r in parts.results] == [r.case for r in whole.results] == [case.id for case in cases]
    assert {r.status for r in parts.results} <= {Status.PASSED, Status.UNSUPPORTED}
    assert sorted(r.case for r in told) == sorted(case.id for case in cases)
    assert parts.problems == [] and parts.facts is not None


def test_a_backend_that_does_not_open_is_one_problem() -> None:
    cases = select(profile="full", capabilities=("softmax", "rope"), pattern="")
    found = run_in_parts("cpu:7", cases, Rules(), jobs=2)
    assert found.facts is None and found.results == []
    assert len(found.problems) == 1 and "cannot be opened" in found.problems[0]


def test_no_case_is_no_result() -> None:
    assert run_in_parts("cpu", [], Rules(), jobs=2).results == []


def dealt(
    monkeypatch: pytest.MonkeyPatch, work: Callable[[Sequence[Case], Callable[[], Sequence[Case]]], list[Case]]
) -> Callable[[Sequence[Case]], list[str]]:
    """Deals cases out to two workers, each of which runs those that `work` says, and returns the ids of the results."""

    def pretend(backend: str, first: Sequence[Case], rules: Rules, *, further: Any, **_: Any) -> Outcome:
        done = [Result(case=case.id, capability=case.capability, status=Status.PASSED) for case in work(first, further)]
        return Outcome(facts={}, results=done, problems=[], advice=[])

    monkeypatch.setattr(module, "run", pretend)
    return lambda cases: [result.case for result in run_in_parts("none", cases, Rules(), jobs=2).results]


def test_a_worker_that_is_done_takes_the_next_check_and_no_check_is_run_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    cases = select(profile="full", capabilities=("softmax", "rope"), pattern="")
    others_are_done = threading.Event()
    taken: list[str] = []

    def work(first: Sequence[Case], further: Callable[[], Sequence[Case]]) -> list[Case]:
        done = list(first)
        if first[0] is cases[0]:
            assert others_are_done.wait(20)
        while more := further():
            assert len({case.id.split("/")[1] for case in more}) == 1
            done += more
        others_are_done.set()
        taken.extend(case.id for case in done)
        return done

    assert dealt(monkeypatch, work)(cases) == [case.id for case in cases]
    assert sorted(taken) == sorted(case.id for case in cases)


def test_long_checks_are_begun_first(monkeypatch: pytest.MonkeyPatch) -> None:
    cases = select(profile="full", capabilities=("storage", "models", "lifecycle"), pattern="")
    begun: list[str] = []

    def work(first: Sequence[Case], further: Callable[[], Sequence[Case]]) -> list[Case]:
        begun.append(first[0].capability)
        return []

    dealt(monkeypatch, work)(cases)
    assert begun == ["models", "models"]
