"""The two-sided audit: what a plugin says of itself beside what was seen, and what it should say."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from turret.spi import OPTIONAL_SLOTS

from .ledger import Ledger
from .profiles import PROFILES, Profile
from .results import Result, Status
from .suite import all_cases


@dataclass(frozen=True, slots=True, kw_only=True)
class Audit:
    """over: declared, but not so. under: so, but not declared. manifest: corrected lines, "" where nothing is wrong.

    certified: per profile whose every case was run, whether it holds.
    """

    over: list[str] = field(default_factory=list)
    under: list[str] = field(default_factory=list)
    manifest: str = ""
    certified: dict[str, bool] = field(default_factory=dict)


def audit(
    results: Sequence[Result],
    *,
    provides: Sequence[str],
    native: Sequence[str],
    declared_dtypes: Sequence[str],
    dtypes: Sequence[str],
    ledger: Ledger,
) -> Audit:
    """Slots, dtypes and profiles, each from both sides. A slot is judged only where cases of it ran."""
    failing = {
        result.capability
        for result in results
        if result.status.bad and result.status is not Status.TIMED_OUT and not result.advisory
    }
    ran = {result.capability for result in results if result.status.ran}
    over = [f"slot {name}: declared in `provides`, but the table has None" for name in provides if name not in native]
    over += [
        f"slot {name}: declared native, but its cases fail" for name in native if name in provides and name in failing
    ]
    under = [
        f"slot {name}: native{' and passing' if name in ran - failing else ''}, but not declared in `provides`"
        for name in native
        if name not in provides
    ]
    over += [
        f"dtype {name}: declared, but the device does not have it" for name in declared_dtypes if name not in dtypes
    ]
    under += [
        f"dtype {name}: the device has it, but it is not declared" for name in dtypes if name not in declared_dtypes
    ]
    certified = {name: _holds(profile, results) for name, profile in PROFILES.items() if _complete(profile, results)}
    # running out of time decides nothing about a promise
    decided = [result for result in results if result.status is not Status.TIMED_OUT]
    doubtful = {name for name, good in certified.items() if not good and _nothing_wrong(PROFILES[name], decided)}
    if broken := [name for name in ledger.profiles if certified.get(name) is False and name not in doubtful]:
        over.append(f"claimed profiles that do not hold: {', '.join(broken)}")
    under += [
        f"profile {name}: holds, but is not claimed"
        for name, good in certified.items()
        if good and name not in ledger.profiles
    ]
    right_slots = [name for name in OPTIONAL_SLOTS if name in native and name not in failing]
    # a run of a part certifies nothing, and says nothing about claims
    right_profiles = (
        [name for name in PROFILES if certified.get(name, name in ledger.profiles) or name in doubtful]
        if certified
        else None
    )
    return Audit(
        over=over,
        under=under,
        manifest=_manifest(right_slots, dtypes, right_profiles) if over or under else "",
        certified=certified,
    )


def _complete(profile: Profile, results: Sequence[Result]) -> bool:
    return {case.id for case in all_cases() if profile.has(case)} <= {result.case for result in results}


def _holds(profile: Profile, results: Sequence[Result]) -> bool:
    """Nothing bad, nothing expected to fail, and something executed in every capability."""
    by_id = {result.case: result for result in results}
    mine = [by_id[case.id] for case in all_cases() if profile.has(case)]
    executed = {result.capability for result in mine if result.status is Status.PASSED}
    return _nothing_wrong(profile, results) and executed == {result.capability for result in mine}


def _nothing_wrong(profile: Profile, results: Sequence[Result]) -> bool:
    mine = {case.id for case in all_cases() if profile.has(case)}
    return not any(
        result.case in mine and not result.advisory and (result.status.bad or result.status is Status.EXPECTED_FAILURE)
        for result in results
    )


def _manifest(slots: Sequence[str], dtypes: Sequence[str], profiles: Sequence[str] | None) -> str:
    lines = [
        "# plugin.py, in BackendInfo(...)",
        f"provides=frozenset([{_quoted(slots)}]),",
        f"dtypes=frozenset([{_quoted(dtypes)}]),",
    ]
    if profiles is not None:
        lines += ["# conformance.toml", f"profiles = [{_quoted(profiles)}]"]
    return "\n".join(lines)


def _quoted(words: Sequence[str]) -> str:
    return ", ".join(f'"{word}"' for word in words)
