"""The part `conformance`: the suite's profile `full`, told while it runs."""

from __future__ import annotations

import dataclasses
import time
from collections import Counter
from typing import Any

from .request import Request, Teller
from .schema import CaseFailure

EVERY_S = 0.5
SAID_EVERY_S = 10.0
CASE_S = 60.0
LONGEST_MESSAGE = 600


class Tally:
    """What is known of the results so far."""

    def __init__(self, tell: Teller, chosen: int, *, aloud: bool = True) -> None:
        self._tell, self._chosen, self._aloud = tell, chosen, aloud
        self._counts: Counter[str] = Counter()
        self._capabilities: dict[str, Counter[str]] = {}
        self._executed = self._failed = 0
        self._told = self._said = time.monotonic()

    def result(self, result: Any) -> None:
        """A case has ended; a failure is told at once, counts now and then."""
        self._counts[result.status.value] += 1
        self._capabilities.setdefault(result.capability, Counter())[result.status.value] += 1
        self._executed += result.status.ran
        if result.status.bad and not result.advisory:
            self._failed += 1
            message = result.message[:LONGEST_MESSAGE]
            self._tell.add("failures", CaseFailure(case=result.case, status=result.status.value, message=message))
            if self._aloud:
                self._tell.say(f"{result.status.value}: {result.case}")
        now = time.monotonic()
        if now - self._told > EVERY_S or self._failed:
            self._told = now
            self.put()
        if self._aloud and now - self._said > SAID_EVERY_S:
            self._said = now
            self._tell.say(f"{sum(self._counts.values())} of {self._chosen} cases, {self._failed} failed")

    def put(self) -> None:
        """Tells all counts."""
        self._tell.put(
            counts=dict(self._counts),
            executed=self._executed,
            passed=self._counts["passed"],
            failed=self._failed,
            capabilities={name: dict(found) for name, found in self._capabilities.items()},
        )


def run(request: Request, tell: Teller) -> None:
    """Every case of the profile, or of each `request.every` of them one."""
    from turret.conformance.examine import Request as Asked
    from turret.conformance.examine import examine, plan

    planned = plan(Asked(backend=request.spec, profile="full", jobs=request.jobs, timeout_s=CASE_S))
    chosen = planned.case_ids[:: request.every]
    tell.put(jobs=request.jobs, profile_cases=len(planned.case_ids), chosen=len(chosen))
    tally = Tally(tell, len(chosen))
    report = examine(dataclasses.replace(planned, case_ids=chosen), progress=tally.result)
    final = Tally(tell, len(chosen), aloud=False)
    tell.put(failures=[])
    for result in report.results:  # once more: the ledger has been applied
        final.result(result)
    final.put()
    problems = [*report.problems, *report.audit.over]
    tell.put(problems=problems)
    wrong = [f"{len(report.failures)} cases failed"] if report.failures else []
    tell.end([*wrong, *problems] or ([] if report.good else [report.verdict]))
