"""A report: everything one run found, as data that renders to a terminal, JSON, Markdown and HTML."""

from __future__ import annotations

import datetime
import json
from collections import Counter
from dataclasses import asdict, dataclass, field
from typing import Any

from turret.spi import ConfigError

from .audit import Audit
from .results import Result, Status

SCHEMA = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """One run on one backend.

    facts: versions and the device, empty where the backend could not be opened. asked: profile, capabilities, pattern,
    seed and the flags. problems: what is wrong and no case: a ledger entry, a backend that does not open. advice: which
    slots to make native next.
    """

    backend: str
    facts: dict[str, Any]
    asked: dict[str, Any]
    started: str
    seconds: float
    results: list[Result]
    problems: list[str]
    audit: Audit = field(default_factory=Audit)
    advice: list[str] = field(default_factory=list)

    @property
    def counts(self) -> dict[str, int]:
        found = Counter(result.status for result in self.results)
        return {status.value: found[status] for status in Status}

    @property
    def executed(self) -> int:
        return sum(result.status.ran for result in self.results)

    @property
    def failures(self) -> list[Result]:
        """What fails the run: bad, and not only advice."""
        return [result for result in self.results if result.status.bad and not result.advisory]

    @property
    def good(self) -> bool:
        """Nothing failed, nothing is wrong with the run, and something was executed."""
        return not self.failures and not self.problems and not self.audit.over and self.executed > 0

    @property
    def verdict(self) -> str:
        """One line that says how it went and why."""
        if not self.results and self.problems:
            return f"FAILED: {self.problems[0]}"
        if not self.executed:
            return "FAILED: no case was executed, which proves nothing"
        count = self.counts
        said = ", ".join(f"{count[status.value]} {status.value}" for status in Status if count[status.value])
        wrong = [*self.problems, *([] if self.failures else self.audit.over)]
        return f"{'passed' if self.good else 'FAILED'}: {said}" + (f"; {'; '.join(wrong)}" if wrong else "")

    def by_capability(self) -> dict[str, dict[str, Any]]:
        """Per capability, in the order of the run: counts by status, native or derived, and the largest budget use."""
        table: dict[str, dict[str, Any]] = {}
        for result in self.results:
            row = table.setdefault(
                result.capability,
                {
                    **{status.value: 0 for status in Status},
                    "native": result.native,
                    "budget_used": None,
                    "seconds": 0.0,
                    "fell_to_derived": 0,
                },
            )
            row[result.status.value] += 1
            row["seconds"] += result.seconds
            row["fell_to_derived"] += bool(result.native and result.capability in result.derived)
            if result.budget_used is not None and result.status is Status.PASSED:
                row["budget_used"] = max(row["budget_used"] or 0.0, result.budget_used)
        return table

    def as_json(self) -> dict[str, Any]:
        return {
            "schema": SCHEMA,
            "backend": self.backend,
            "good": self.good,
            "verdict": self.verdict,
            "facts": self.facts,
            "asked": self.asked,
            "started": self.started,
            "seconds": round(self.seconds, 3),
            "counts": self.counts,
            "executed": self.executed,
            "capabilities": self.by_capability(),
            "problems": self.problems,
            "audit": asdict(self.audit),
            "advice": self.advice,
            "results": [result.as_json() for result in self.results],
        }

    @classmethod
    def from_json(cls, text: str, source: str) -> Report:
        """Raises: ConfigError for what is not a report of this schema."""
        try:
            data = json.loads(text)
            if data["schema"] != SCHEMA:
                raise ConfigError(
                    f"{source} has schema {data['schema']!r}, wanted {SCHEMA}; make it again with this suite"
                )
            return cls(
                backend=data["backend"],
                facts=data["facts"],
                asked=data["asked"],
                started=data["started"],
                seconds=data["seconds"],
                results=[Result.from_json(each) for each in data["results"]],
                problems=data["problems"],
                audit=Audit(**data["audit"]),
                advice=data["advice"],
            )
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise ConfigError(f"{source} is no conformance report ({error!r}); make one with --json") from error


def now() -> str:
    """The time of day in UTC, to the second."""
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
