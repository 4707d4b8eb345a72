"""Two reports compared: what was lost, what was won, and what changed around it."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from .report import Report
from .results import Result, Status

ABSENT = "not there"
DRIFT_POINTS = 0.25
DRIFT_FLOOR = 0.20
VERSIONS = ("suite", "spi", "core", "plugin_version", "plugin_spi", "python", "platform", "device", "device_kind")
GOOD_BEFORE = (Status.PASSED, Status.EXPECTED_FAILURE)
CHANGES = ("regressions", "coverage_lost", "new_failures", "newly_expected", "newly_passing", "newly_executed")


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One case that came to something else. old, new: a status, or `not there`. message: the new one, if it has one."""

    case: str
    old: str
    new: str
    message: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Drift:
    """One case that passes and uses more of its budget than it did; 1.0 is all of it."""

    case: str
    old: float
    new: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """All that differs. Every case stands in at most one of the lists of changes.

    regressions: passed or was expected to fail, and is bad now. coverage_lost: was executed, is not any more.
    new_failures: bad, and was not executed before. newly_expected: passed, and is in the ledger now. newly_passing:
    executed both times, passes now. newly_executed: was not executed before, is not bad. versions: (what, old, new).
    notes: what makes the two runs less comparable.
    """

    regressions: list[Change]
    coverage_lost: list[Change]
    new_failures: list[Change]
    newly_expected: list[Change]
    newly_passing: list[Change]
    newly_executed: list[Change]
    drifts: list[Drift]
    profiles_lost: list[str]
    profiles_gained: list[str]
    native_lost: list[str]
    native_gained: list[str]
    versions: list[tuple[str, str, str]]
    notes: list[str]

    @property
    def lost(self) -> bool:
        """Whether the new report proves less than the old one did. A drift of a budget is no loss."""
        return bool(self.regressions or self.coverage_lost or self.profiles_lost or self.native_lost)

    def as_json(self) -> dict[str, Any]:
        return {"lost": self.lost, **asdict(self)}


def compare(old: Report, new: Report) -> Difference:
    """The same backend before and after a change, in the order of the old run, then of the new one."""
    before = {result.case: result for result in old.results}
    after = {result.case: result for result in new.results}
    lists: dict[str, list[Change]] = {name: [] for name in CHANGES}
    for case in dict.fromkeys((*before, *after)):
        if (kind := _kind(before.get(case), after.get(case))) is not None:
            lists[kind].append(_change(case, before.get(case), after.get(case)))
    held_before, held_after = _certified(old), _certified(new)
    native_before, native_after = set(old.facts.get("native", ())), set(new.facts.get("native", ()))
    return Difference(
        **lists,
        drifts=[drift for case in before if (drift := _drift(before[case], after.get(case))) is not None],
        profiles_lost=[name for name in held_before if name not in held_after],
        profiles_gained=[name for name in held_after if name not in held_before],
        native_lost=sorted(native_before - native_after),
        native_gained=sorted(native_after - native_before),
        versions=_versions(old.facts, new.facts),
        notes=_notes(old, new),
    )


def _kind(old: Result | None, new: Result | None) -> str | None:
    """The list in which the change belongs, None where there is none or it is of no account."""
    ran_before, runs_now = old is not None and old.status.ran, new is not None and new.status.ran
    if not runs_now:
        return "coverage_lost" if ran_before else None
    assert new is not None
    if old is None or not ran_before:
        return "new_failures" if new.status.bad else "newly_executed"
    if new.status.bad:
        return "regressions" if old.status in GOOD_BEFORE else None
    if new.status is Status.PASSED:
        return None if old.status is Status.PASSED else "newly_passing"
    return "newly_expected" if old.status is Status.PASSED else None


def _change(case: str, old: Result | None, new: Result | None) -> Change:
    return Change(
        case=case,
        old=old.status.value if old is not None else ABSENT,
        new=new.status.value if new is not None else ABSENT,
        message=new.message if new is not None else "",
    )


def _drift(old: Result, new: Result | None) -> Drift | None:
    """Only between passes: elsewhere the status says more than the budget."""
    if new is None or not (old.status is new.status is Status.PASSED):
        return None
    if old.budget_used is None or new.budget_used is None:
        return None
    grown = new.budget_used - old.budget_used > DRIFT_POINTS
    doubled = new.budget_used > DRIFT_FLOOR and new.budget_used > 2 * old.budget_used
    return Drift(case=old.case, old=old.budget_used, new=new.budget_used) if grown or doubled else None


def _certified(report: Report) -> list[str]:
    return [name for name, good in report.audit.certified.items() if good]


def _versions(old: dict[str, Any], new: dict[str, Any]) -> list[tuple[str, str, str]]:
    flat_old, flat_new = _flat(old), _flat(new)
    return [
        (name, flat_old.get(name, ABSENT), flat_new.get(name, ABSENT))
        for name in dict.fromkeys((*flat_old, *flat_new))
        if flat_old.get(name) != flat_new.get(name)
    ]


def _flat(facts: dict[str, Any]) -> dict[str, str]:
    libraries = {f"library {name}": str(version) for name, version in facts.get("libraries", {}).items()}
    return {name: str(facts[name]) for name in VERSIONS if name in facts} | libraries


def _notes(old: Report, new: Report) -> list[str]:
    notes = []
    if old.backend != new.backend:
        notes.append(f"different backends: {old.backend} and {new.backend}")
    for name in dict.fromkeys((*old.asked, *new.asked)):
        was, is_now = old.asked.get(name), new.asked.get(name)
        if was != is_now:
            consequence = ", so the inputs differ" if name == "seed" else ""
            notes.append(f"different {name}: {was!r} and {is_now!r}{consequence}")
    if new.problems:
        notes.append(f"the new run has {len(new.problems)} problem(s) of its own: {'; '.join(new.problems)}")
    return notes
