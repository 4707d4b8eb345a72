"""How far a run has come, on stderr: a bar on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import click

from turret.conformance.results import Result

EVERY_S = 10.0


@contextmanager
def progress(total: int, what: str) -> Iterator[Callable[[Result], None]]:
    """The function to call with each result. Failures are named as they come."""
    if sys.stderr.isatty():
        with _bar(total, what) as step:
            yield step
        return
    done, said = 0, time.monotonic()

    def plain(result: Result) -> None:
        nonlocal done, said
        done += 1
        if result.status.bad:
            click.echo(f"{result.status.value}: {result.case}", err=True)
        if time.monotonic() - said > EVERY_S:
            click.echo(f"{what}: {done} of {total} cases", err=True)
            said = time.monotonic()

    yield plain


@contextmanager
def _bar(total: int, what: str) -> Iterator[Callable[[Result], None]]:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(what, total=total)

        def step(result: Result) -> None:
            bar.update(task, advance=1, description=f"{what} {result.capability}")
            if result.status.bad:
                bar.console.print(f"{result.status.value}: {result.case}", markup=False, highlight=False)

        yield step
