"""How far a run has come, on stderr: a bar on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Protocol

import click

from turret.conformance.results import Result

EVERY_S = 10.0


class Told(Protocol):
    """What a run tells while it goes."""

    def result(self, result: Result, /) -> None:
        """A case has ended."""
        ...

    def waiting(self, case: str, seconds: float, /) -> None:
        """A case has been running for so long."""
        ...


@contextmanager
def progress(total: int, what: str) -> Iterator[Told]:
    """Where to tell results and waits. Failures are named as they come."""
    if not sys.stderr.isatty():
        yield Lines(total, what)
        return
    with _bar(total, what) as bar:
        yield bar


class Lines:
    """Plain lines: every failure, every long wait, and now and then the count."""

    def __init__(self, total: int, what: str) -> None:
        self._total, self._what, self._done, self._said = total, what, 0, time.monotonic()

    def result(self, result: Result, /) -> None:
        self._done += 1
        if result.status.bad:
            self._echo(f"{result.status.value}: {result.case}")
        if time.monotonic() - self._said > EVERY_S:
            self._say(f"{self._done} of {self._total} cases")

    def waiting(self, case: str, seconds: float, /) -> None:
        self._say(f"{self._done} of {self._total} cases, {seconds:.0f} s in {case}")

    def _say(self, text: str) -> None:
        self._echo(f"{self._what}: {text}")
        self._said = time.monotonic()

    def _echo(self, line: str) -> None:
        with suppress(OSError):  # nobody reads it, or its disk is full: the findings do not depend on that
            click.echo(line, err=True)


@contextmanager
def _bar(total: int, what: str) -> Iterator[Told]:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    described = TextColumn("{task.description}", markup=False)
    columns = described, BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(what, total=total)

        class Bar:
            def result(self, result: Result, /) -> None:
                bar.update(task, advance=1, description=f"{what} {result.capability}")
                if result.status.bad:
                    bar.console.print(f"{result.status.value}: {result.case}", markup=False, highlight=False)

            def waiting(self, case: str, seconds: float, /) -> None:
                bar.update(task, description=f"{what} {case} ({seconds:.0f} s)")

        yield Bar()
