from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given

from turret.conformance.audit import Audit
from turret.conformance.diff import Difference, compare
from turret.conformance.report import Report
from turret.conformance.results import Result, Status

CASE = "softmax/forward/5x65-f32"
EXECUTED = ["passed", "failed", "crashed", "timed out", "expected failure"]
NOT_EXECUTED = ["unsupported", "skipped", None]
BAD = ["failed", "crashed", "timed out"]
LISTS = (
    "regressions",
    "coverage_lost",
    "new_failures",
    "newly_expected",
    "newly_passing",
    "newly_executed",
)


@pytest.fixture
def between(make_report: Any, make_result: Any) -> Any:
    """Compares one case between two runs; None: the case is not there."""

    def compared(old: str | None, new: str | None) -> Difference:
        sides = [[make_result(CASE, status)] if status is not None else [] for status in (old, new)]
        return compare(*(make_report("cpu", results) for results in sides))

    return compared


def kinds(found: Difference) -> list[str]:
    return [name for name in LISTS if getattr(found, name)]


@pytest.mark.parametrize("new", BAD)
@pytest.mark.parametrize("old", ["passed", "expected failure"])
def test_what_was_good_and_is_bad_is_a_regression_and_a_loss(between: Any, old: str, new: str) -> None:
    found = between(old, new)
    assert kinds(found) == ["regressions"]
    assert (found.regressions[0].case, found.regressions[0].old, found.regressions[0].new) == (CASE, old, new)
    assert found.lost


@pytest.mark.parametrize("new", NOT_EXECUTED)
@pytest.mark.parametrize("old", EXECUTED)
def test_what_is_no_longer_executed_is_lost_coverage(between: Any, old: str, new: str | None) -> None:
    found = between(old, new)
    assert kinds(found) == ["coverage_lost"]
    assert found.coverage_lost[0].new == (new or "not there")
    assert found.lost


@pytest.mark.parametrize("new", BAD)
@pytest.mark.parametrize("old", NOT_EXECUTED)
def test_a_failure_that_nobody_looked_at_before_is_new_and_no_loss(between: Any, old: str | None, new: str) -> None:
    found = between(old, new)
    assert kinds(found) == ["new_failures"]
    assert not found.lost


@pytest.mark.parametrize("new", ["passed", "expected failure"])
@pytest.mark.parametrize("old", NOT_EXECUTED)
def test_what_is_executed_for_the_first_time_is_told(between: Any, old: str | None, new: str) -> None:
    assert kinds(between(old, new)) == ["newly_executed"]


@pytest.mark.parametrize("old", [*BAD, "expected failure"])
def test_what_passes_now_is_told(between: Any, old: str) -> None:
    assert kinds(between(old, "passed")) == ["newly_passing"]


def test_what_moved_into_the_ledger_is_told(between: Any) -> None:
    assert kinds(between("passed", "expected failure")) == ["newly_expected"]


@pytest.mark.parametrize("status", [*EXECUTED, *NOT_EXECUTED])
def test_a_report_beside_itself_shows_nothing(between: Any, status: str | None) -> None:
    found = between(status, status)
    assert kinds(found) == []
    assert not any((found.drifts, found.versions, found.notes, found.lost))


@given(st.lists(st.tuples(st.sampled_from([*Status, None]), st.sampled_from([*Status, None])), max_size=30))
def test_every_case_stands_in_one_list_at_most(pairs: list[tuple[Status | None, Status | None]]) -> None:
    def side(at: int) -> Report:
        results = [
            Result(case=f"a/b/{n}", capability="a", status=status)
            for n, pair in enumerate(pairs)
            if (status := pair[at]) is not None
        ]
        return Report(backend="x", facts={}, asked={}, started="", seconds=0.0, results=results, problems=[])

    found = compare(side(0), side(1))
    cases = [change.case for name in LISTS for change in getattr(found, name)]
    assert len(cases) == len(set(cases))
    assert found.lost == bool(found.regressions or found.coverage_lost)


@pytest.mark.parametrize(
    ("old", "new", "drifts"),
    [
        (0.10, 0.34, True),  # doubled, above 20 %
        (0.10, 0.20, False),
        (0.05, 0.19, False),  # nearly four times, and still small
        (0.0, 0.21, True),
        (0.5, 0.74, False),
        (0.5, 0.76, True),
        (0.9, 0.1, False),
        (None, 0.9, False),
        (0.9, None, False),
    ],
)
def test_budgets_drift_by_points_or_by_doubling(
    make_report: Any, make_result: Any, old: float | None, new: float | None, drifts: bool
) -> None:
    found = compare(*(make_report("cpu", [make_result(CASE, budget_used=used)]) for used in (old, new)))
    assert [(each.case, each.old, each.new) for each in found.drifts] == ([(CASE, old, new)] if drifts else [])
    assert not found.lost


def test_a_case_that_fails_is_a_regression_and_not_a_drift(make_report: Any, make_result: Any) -> None:
    found = compare(
        make_report("cpu", [make_result(CASE, budget_used=0.1)]),
        make_report("cpu", [make_result(CASE, "failed", budget_used=11.0)]),
    )
    assert found.drifts == []
    assert kinds(found) == ["regressions"]


def test_profiles_are_lost_when_they_do_not_hold_or_were_not_examined(make_report: Any, make_result: Any) -> None:
    results = [make_result(CASE)]
    old = make_report("cpu", results, audit=Audit(certified={"primitives": True, "inference": True, "full": False}))
    new = make_report("cpu", results, audit=Audit(certified={"inference": False, "full": True}))
    found = compare(old, new)
    assert (found.profiles_lost, found.profiles_gained) == (["primitives", "inference"], ["full"])
    assert found.lost
    assert not compare(old, old).lost


def test_native_slots_are_lost_and_gained(make_report: Any, make_result: Any) -> None:
    old, new = (
        make_report("cpu", [make_result(CASE)], facts={"native": native})
        for native in (["rope", "softmax"], ["adam", "softmax"])
    )
    found = compare(old, new)
    assert (found.native_lost, found.native_gained, found.lost) == (["rope"], ["adam"], True)
    assert not compare(make_report("cpu", [], facts={"native": []}), make_report("cpu", [], facts={})).lost


def test_a_backend_that_does_not_open_any_more_loses_all(make_report: Any, make_result: Any) -> None:
    found = compare(make_report("cpu", [make_result(CASE)]), make_report("cpu", [], facts={}, problems=["no device"]))
    assert [each.case for each in found.coverage_lost] == [CASE]
    assert found.native_lost == ["softmax"]
    assert "no device" in found.notes[0]


def test_versions_and_libraries_that_changed_are_told(make_report: Any) -> None:
    old = make_report("cpu", [], facts={"libraries": {"numpy": "2.1", "numba": "0.60"}})
    new = make_report("cpu", [], facts={"core": "0.2.0", "libraries": {"numpy": "2.4", "jax": "0.9"}})
    assert compare(old, new).versions == [
        ("core", "0.1.0", "0.2.0"),
        ("library numpy", "2.1", "2.4"),
        ("library numba", "0.60", "not there"),
        ("library jax", "not there", "0.9"),
    ]


def test_runs_that_are_hard_to_compare_are_noted(make_report: Any) -> None:
    old = make_report("cpu", [])
    new = replace(old, backend="cuda", asked={**old.asked, "seed": 3, "profile": "inference"})
    assert compare(old, new).notes == [
        "different backends: cpu and cuda",
        "different profile: 'full' and 'inference'",
        "different seed: 0 and 3, so the inputs differ",
    ]


def test_a_difference_is_json(between: Any) -> None:
    data = json.loads(json.dumps(between("passed", "failed").as_json()))
    assert data["lost"] is True
    assert data["regressions"] == [{"case": CASE, "old": "passed", "new": "failed", "message": ""}]
