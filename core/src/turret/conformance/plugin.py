"""The suite under pytest: `pytest -p turret.conformance.plugin --pyargs turret.conformance --backend BACKEND`.

Nothing loads it but `-p`: there is no `pytest11` entry point, so that other people's runs stay theirs. Cases run in
pytest's own process, one item each, with the ids of `turret conformance --list`.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from turret.registry.guard import Failure, attempt
from turret.spi import TurretError

from . import ledger as ledgers
from .case import Case
from .examine import Plan, Request, plan
from .execute import Rules
from .profiles import PROFILES
from .render.wording import repro, visible
from .results import Result, Status
from .session import Session, open_session
from .suite import all_cases

STATE = pytest.StashKey["State"]()


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("turret conformance")
    group.addoption("--backend", metavar="BACKEND", help="The backend to examine: name or name:device.")
    group.addoption(
        "--conformance-profile", choices=list(PROFILES), default="full", help="The set of promises [default: full]."
    )
    group.addoption("--conformance-seed", type=_seed, default=0, metavar="N", help="Seed of all inputs [default: 0].")
    group.addoption("--conformance-ledger", type=Path, metavar="FILE", help="Instead of the plugin's conformance.toml.")
    group.addoption("--forbid-derived", action="store_true", help="Fail what turret.derived composed.")
    group.addoption("--forbid-host", action="store_true", help="Fail what went through the host inside a call.")


def _seed(text: str) -> int:
    seed = int(text)
    if not 0 <= seed < 2**32:
        raise argparse.ArgumentTypeError(f"{text} is no seed; wanted 0 to {2**32 - 1}")
    return seed


def pytest_collect_file(file_path: Path, parent: pytest.Collector) -> pytest.Collector | None:
    """The cases hang on this file: it is what `--pyargs turret.conformance` finds in the package."""
    return SuiteFile.from_parent(parent, path=file_path) if file_path == Path(__file__) else None


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Gives the device back; a run in which the backend did nothing has proved nothing and fails."""
    state = session.config.stash.get(STATE, None)
    if state is None:
        return
    closed = attempt(state.stack.close)
    if isinstance(closed, Failure):
        state.problem = f"the backend did not close: {closed}"
        session.exitstatus = session.exitstatus or pytest.ExitCode.TESTS_FAILED
    if state.ran == 0 and session.exitstatus == pytest.ExitCode.OK and not session.config.option.collectonly:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    state = config.stash.get(STATE, None)
    if state is None or config.option.collectonly:
        return
    terminalreporter.write_line(
        f"conformance of {state.plan.spec}: {state.ran} cases executed, seed {state.rules.seed}"
    )
    if state.problem:
        terminalreporter.write_line(visible(state.problem))
    if state.ran == 0:
        terminalreporter.write_line("no case was executed, which proves nothing: the run fails")


class State:
    """One run: the plan, the opened backend (from the first case on), and how many cases exercised it."""

    def __init__(self, planned: Plan) -> None:
        self.plan, self.rules = planned, planned.request.rules
        self.stack = ExitStack()
        self.ran = 0
        self.problem = ""
        self._session: Session | None = None

    def run(self, case: Case) -> Result:
        if self._session is None:
            self._session = self.stack.enter_context(open_session(self.plan.spec))
        result = self._session.run(case, self.rules)
        self.ran += result.status.ran
        return ledgers.apply(self.plan.ledger, [result], known=frozenset([case.id]))[0][0]


class SuiteFile(pytest.File):
    """All cases of the chosen profile."""

    def collect(self) -> Iterator[pytest.Item]:
        option = self.config.option
        if not option.backend:
            raise pytest.UsageError("the conformance suite needs --backend BACKEND; `turret backends` lists them")
        rules = Rules(
            seed=option.conformance_seed, forbid_derived=option.forbid_derived, forbid_host=option.forbid_host
        )
        request = Request(
            backend=option.backend, profile=option.conformance_profile, rules=rules, ledger=option.conformance_ledger
        )
        try:
            planned = plan(request)
        except TurretError as error:
            raise pytest.UsageError(str(error)) from error
        cases = {case.id: case for case in all_cases()}
        _, problems = ledgers.apply(planned.ledger, [], known=frozenset(cases))
        if problems:
            raise self.CollectError("\n".join(problems))
        state = self.config.stash.setdefault(STATE, State(planned))
        for name in planned.case_ids:
            yield CaseItem.from_parent(self, name=name, nodeid=name, case=cases[name], state=state)


class CaseFailed(Exception):
    """Carries the result of a failed case to pytest's report."""


class CaseItem(pytest.Item):
    """One case."""

    def __init__(self, *, case: Case, state: State, **options: Any) -> None:
        super().__init__(**options)
        self.case, self.state = case, state

    def runtest(self) -> None:
        result = self.state.run(self.case)
        message = visible(result.message)
        if result.status in (Status.UNSUPPORTED, Status.SKIPPED):
            pytest.skip(f"{result.status.value}: {message}")
        if result.status is Status.EXPECTED_FAILURE or (result.advisory and result.status.bad):
            pytest.xfail(message)
        if result.status is not Status.PASSED:
            raise CaseFailed(message)

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None) -> Any:
        if not isinstance(excinfo.value, CaseFailed):
            return super().repr_failure(excinfo, style)
        return f"{excinfo.value}\nagain: {repro(self.case.id, self.state.plan.spec, self.state.rules.seed)}"

    def reportinfo(self) -> tuple[Path, None, str]:
        return self.path, None, self.case.id
