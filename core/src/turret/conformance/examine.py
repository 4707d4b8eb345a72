"""One whole examination: choose cases, run them, apply the ledger, audit the claims, and report."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from turret.registry import Registry
from turret.registry.names import AUTO, Spec
from turret.spi import BackendInfo

from . import ledger as ledgers
from .audit import Audit, audit
from .execute import Rules
from .parts import run_in_parts
from .profiles import select
from .report import Report, now
from .results import Result
from .runner import TIMEOUT_S, Progress, Waiting
from .suite import all_cases


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What is asked of one backend.

    ledger: a file instead of the plugin's own `conformance.toml`. advise: also measure what to make native next. jobs:
    how many processes run cases at the same time.
    """

    backend: str
    profile: str = "full"
    capabilities: tuple[str, ...] = ()
    pattern: str = ""
    rules: Rules = field(default_factory=Rules)
    isolate: bool = False
    timeout_s: float = TIMEOUT_S
    ledger: Path | None = None
    advise: bool = False
    jobs: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A request that was found to make sense: everything that can be wrong with it is known before a case runs."""

    request: Request
    info: BackendInfo
    spec: str
    case_ids: tuple[str, ...]
    ledger: ledgers.Ledger


def plan(request: Request) -> Plan:
    """Raises: ConfigError, BackendNotFound, PluginError, SpiMismatch."""
    registry = Registry()
    spec = request.backend
    if Spec.parse(spec).name == AUTO:
        spec = registry.auto().spec
    info = registry.loadable(Spec.parse(spec))
    chosen = select(profile=request.profile, capabilities=request.capabilities, pattern=request.pattern)
    ledger = ledgers.read(request.ledger) if request.ledger is not None else ledgers.of_plugin(info)
    return Plan(request=request, info=info, spec=spec, case_ids=tuple(case.id for case in chosen), ledger=ledger)


def examine(
    planned: Plan,
    *,
    progress: Progress = lambda result: None,
    waiting: Waiting = lambda case, seconds: None,
) -> Report:
    """Runs the plan. A backend that cannot be opened is a failed report, not an exception."""
    request, started, begun = planned.request, now(), time.perf_counter()
    wanted = set(planned.case_ids)
    cases = [case for case in all_cases() if case.id in wanted]
    outcome = run_in_parts(
        planned.spec,
        cases,
        request.rules,
        jobs=request.jobs,
        isolate=request.isolate,
        timeout_s=request.timeout_s,
        advise=request.advise,
        progress=progress,
        waiting=waiting,
    )
    known = frozenset(case.id for case in all_cases())
    results, problems = ledgers.apply(planned.ledger, outcome.results, known=known)
    facts = outcome.facts or {}
    return Report(
        backend=planned.spec,
        facts=facts,
        asked=_asked(request),
        started=started,
        seconds=time.perf_counter() - begun,
        results=results,
        problems=[*outcome.problems, *problems],
        advice=outcome.advice,
        audit=_audited(results, facts, planned.ledger),
    )


def _audited(results: Sequence[Result], facts: dict[str, list[str]], ledger: ledgers.Ledger) -> Audit:
    if not facts:
        return Audit()
    return audit(
        results,
        provides=facts["provides"],
        native=facts["native"],
        declared_dtypes=facts["declared_dtypes"],
        dtypes=facts["dtypes"],
        ledger=ledger,
    )


def _asked(request: Request) -> dict[str, object]:
    return {
        "profile": request.profile,
        "capabilities": list(request.capabilities),
        "pattern": request.pattern,
        "isolate": request.isolate,
        "timeout_s": request.timeout_s,
        **{name: value for name, value in asdict(request.rules).items() if name != "perturb"},
    }
