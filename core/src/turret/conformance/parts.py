"""Several workers at once, each with a part of the cases: for backends that compile, whose time is the compiler's."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from .case import Case
from .execute import Rules
from .results import Result
from .runner import TIMEOUT_S, Outcome, Progress, Waiting, run


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

    Cases of one check stay together: they share what a backend compiles. What is measured for advice is measured when
    all workers are done.
    """
    parts = [part for part in _parts(cases, jobs) if part] or [[]]
    lock = threading.Lock()

    def tell(result: Result) -> None:
        with lock:
            progress(result)

    def wait(case: str, seconds: float) -> None:
        with lock:
            waiting(case, seconds)

    def work(part: Sequence[Case]) -> Outcome:
        return run(backend, part, rules, isolate=isolate, timeout_s=timeout_s, progress=tell, waiting=wait)

    with ThreadPoolExecutor(len(parts)) as pool:
        outcomes = list(pool.map(work, parts))
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


def _parts(cases: Sequence[Case], jobs: int) -> list[list[Case]]:
    """Checks are dealt out in turns, so that no worker gets all of the slow ones."""
    parts: list[list[Case]] = [[] for _ in range(jobs)]
    checks = itertools.groupby(cases, key=lambda case: case.id.split("/")[:2])
    for number, (_, group) in enumerate(checks):
        parts[number % jobs] += group
    return parts
