"""Several workers find what one finds, in the same order, and lose nothing when one of them dies."""

from __future__ import annotations

import pytest

from turret.conformance.execute import Rules
from turret.conformance.parts import run_in_parts
from turret.conformance.profiles import select
from turret.conformance.results import Result, Status
from turret.conformance.runner import run


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
