"""Several workers at once, which share the cases: for backends that compile, whose time is the compiler's."""

from __future__ import annotations

import itertools
import threading
from collections import deque
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from .case import Case
from .execute import Rules
from .results import Result
from .runner import TIMEOUT_S, Outcome, Progress, Waiting, run

LONG = ("models", "lifecycle")
"""Begun first where there are several workers: a long check at the end would keep one busy and the others waiting."""


def run_in_parts(
    backend: str,
    cases: Sequence[Case],
    rules: Rules,
    *,
    jobs: int,
    isolate: bool = False,
    timeout_s: float = TIMEOUT_S,
    advise: bool = False,
    progress: Progress = lambda result: None,
    waiting: Waiting = lambda case, seconds: None,
) -> Outcome:
    """`runner.run` in `jobs` workers; results come in the order of `cases`.

    A worker gets the cases of one check, which share what a backend compiles, and the next check when those are done.
    What is measured for advice is measured when all workers are done.
    """
    checks = _checks(cases) if jobs > 1 else deque([cases])
    lock = threading.Lock()

    def further() -> Sequence[Case]:
        with lock:
            return checks.popleft() if checks else ()

    def tell(result: Result) -> None:
        with lock:
            progress(result)

    def wait(case: str, seconds: float) -> None:
        with lock:
            waiting(case, seconds)

    def work(first: Sequence[Case]) -> Outcome:
        return run(
            backend,
            first,
            rules,
            isolate=isolate,
            timeout_s=timeout_s,
            further=further,
            progress=tell,
            waiting=wait,
        )

    firsts = [further() for _ in range(min(jobs, len(checks)))]
    with ThreadPoolExecutor(jobs) as pool:
        outcomes = list(pool.map(work, firsts))
    found = {result.case: result for outcome in outcomes for result in outcome.results}
    results = [found[case.id] for case in cases if case.id in found]
    advice: list[str] = []
    if advise and not any(result.status.bad for result in results):
        advice = run(backend, (), rules, advise=True).advice
    return Outcome(
        facts=next((outcome.facts for outcome in outcomes if outcome.facts), None),
        results=results,
        problems=list(dict.fromkeys(problem for outcome in outcomes for problem in outcome.problems)),
        advice=advice,
    )


def _checks(cases: Sequence[Case]) -> deque[Sequence[Case]]:
    """The cases of each check, in the order in which they are to be begun."""
    groups = [tuple(group) for _, group in itertools.groupby(cases, key=lambda case: case.id.split("/")[:2])]
    return deque(sorted(groups, key=lambda group: group[0].capability not in LONG))
