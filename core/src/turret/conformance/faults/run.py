"""The hunt: which case of the suite notices a fault, or none."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from turret.registry import OpenBackend

from ..case import Case
from ..child import works_in_a_fork
from ..execute import Rules, execute
from ..profiles import PROFILES, Profile
from ..results import Result
from ..subject import Subject
from ..suite import all_cases
from .catalogue import CATALOGUE
from .fault import Fault, Need
from .lifecycle import NOTHING
from .opening import broken, shown


@dataclass(frozen=True, slots=True, kw_only=True)
class Kill:
    """How the hunt for one fault ended.

    killed_by: the first case that fails with the fault and does not without, or None for a survivor. message: what that
    case said, or why the fault could not show. cases: how many ran on the broken backend. expressible: False where the
    fault needs something that this backend does not do: such a fault is neither killed nor a survivor.
    """

    fault: Fault
    killed_by: str | None
    message: str
    cases: int
    seconds: float
    expressible: bool = True


class Hunt:
    """One good backend, and what it answers to the cases that noticed a fault."""

    def __init__(self, opened: OpenBackend, *, seed: int) -> None:
        self._opened, self._rules = opened, Rules(seed=seed)
        self._good = Subject(opened)
        self._answers: dict[str, Result] = {}

    def good(self, case: Case) -> Result:
        """What the case came to on the good backend, behind a target of ours for the life cycle; run once."""
        if case.id not in self._answers:
            self._answers[case.id] = execute(case, self._reference(case), self._rules)
        return self._answers[case.id]

    def _reference(self, case: Case) -> Subject:
        if case.capability != NOTHING.capability:
            return self._good
        return Subject(broken(NOTHING, self._opened))

    def _lacks(self, need: Need | None) -> str:
        """Why a fault cannot show here, or ""."""
        if need == "writing" and not self._good.writes_in_place:
            return "arrays of this library cannot be written in place"
        if need == "float64" and "float64" not in self._good.device.dtypes:
            return "this device has no float64"
        if need == "forking" and not works_in_a_fork(self._opened):
            return "this backend refuses to work in a forked child"
        return ""

    def kill(self, fault: Fault, cases: Sequence[Case]) -> Kill:
        """Runs the cases on the broken backend up to the first that fails there and not on the good one."""
        start = time.perf_counter()
        if lacking := self._lacks(fault.needs):
            return Kill(
                fault=fault,
                killed_by=None,
                message=lacking,
                cases=0,
                seconds=time.perf_counter() - start,
                expressible=False,
            )
        subject, ran = Subject(broken(fault, self._opened)), 0
        for case in cases:
            with shown(fault):
                result = execute(case, subject, self._rules)
            ran += result.status.ran
            if result.status.bad and not self.good(case).status.bad:
                return Kill(
                    fault=fault,
                    killed_by=case.id,
                    message=result.message,
                    cases=ran,
                    seconds=time.perf_counter() - start,
                )
        message = f"{ran} cases of {fault.capability} ran and none noticed"
        return Kill(fault=fault, killed_by=None, message=message, cases=ran, seconds=time.perf_counter() - start)


def kill(fault: Fault, opened: OpenBackend, *, seed: int = 0) -> Kill:
    """Hunts one fault with all the cases of its capability. `opened` stays good and open."""
    return Hunt(opened, seed=seed).kill(fault, cases_for(fault))


def kill_all(
    opened: OpenBackend, *, seed: int = 0, profile: str = "full", faults: Sequence[Fault] = CATALOGUE
) -> Iterator[Kill]:
    """Hunts every fault in the profile's scope with the profile's own cases, in order."""
    hunt, chosen = Hunt(opened, seed=seed), PROFILES[profile]
    for each in faults:
        if in_scope(each, chosen):
            yield hunt.kill(each, [case for case in cases_for(each) if chosen.has(case)])


def cases_for(fault: Fault) -> list[Case]:
    """The cases of the fault's capability, in the order of a run."""
    return [case for case in all_cases() if case.capability == fault.capability]


def in_scope(fault: Fault, profile: Profile) -> bool:
    """Whether the profile promises that this fault is absent: its cases, its kind and the slot that is broken."""
    return (
        fault.capability in profile.capabilities
        and (not fault.slot or fault.slot in profile.capabilities)
        and fault.kind not in profile.without
    )
