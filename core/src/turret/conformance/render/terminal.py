"""A report on the terminal: failures in full, one table, one verdict."""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Sequence
from typing import Any

import click

from ..report import Report
from ..results import Result
from . import wording

SHOWN_EACH = 6
WIDTH = 118


def show(report: Report) -> None:
    """Prints on stdout."""
    from rich.console import Console

    for capability, failures in _by_capability(report.failures).items():
        for result in failures[:SHOWN_EACH]:
            click.echo(wording.visible("\n".join(failure(result, report))) + "\n")
        if (more := len(failures) - SHOWN_EACH) > 0:
            click.echo(f"... and {more} more of {capability}; --json has them all\n")
    if report.results:
        Console(width=WIDTH, highlight=False).print(_table(report))
    for line in notes(report):
        click.echo(wording.visible(line))
    verdict = wording.visible(report.verdict)
    click.echo(f"{report.backend}: {verdict} (in {report.seconds:.1f} s, seed {report.asked['seed']})")


def _by_capability(failures: Sequence[Result]) -> dict[str, list[Result]]:
    """One fault fails many cases of its capability alike: a few of each say more than many of one."""
    groups: dict[str, list[Result]] = {}
    for result in failures:
        groups.setdefault(result.capability, []).append(result)
    return groups


def failure(result: Result, report: Report) -> list[str]:
    """What was called, what was wrong, and how to have it alone."""
    return [
        f"{result.status.value.upper()} {result.case}",
        *textwrap.wrap(result.message, WIDTH - 2, initial_indent="  ", subsequent_indent="  "),
        f"  again: {wording.again(result, report)}",
    ]


def notes(report: Report) -> list[str]:
    """What stands below the table: the audit, profiles, versions."""
    lines = [f"{status}: {count}: {reason}" for (status, reason), count in _left_out(report).items()]
    lines += [f"over-claim: {each}" for each in report.audit.over]
    lines += [f"not claimed: {each}" for each in report.audit.under]
    if report.audit.manifest and report.audit.over:
        lines += ["mend the failures, or say what is so now:", textwrap.indent(report.audit.manifest, "  ")]
    lines += [f"problem: {each}" for each in report.problems]
    certified = [f"{name} {'holds' if good else 'does not hold'}" for name, good in report.audit.certified.items()]
    if certified:
        lines.append(f"profiles: {', '.join(certified)}")
    lines += report.advice
    if report.facts:
        lines.append(wording.versions(report.facts))
    return lines


def _left_out(report: Report) -> Counter[tuple[str, str]]:
    """How many cases were not executed for each reason."""
    return Counter((each.status.value, each.message) for each in report.results if not each.status.ran)


def _table(report: Report) -> Any:
    from rich import box
    from rich.table import Table

    statuses = wording.columns(report)
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("capability")
    table.add_column("made by")
    for status in statuses:
        table.add_column(status.value, justify="right")
    table.add_column("budget used", justify="right")
    table.add_column("seconds", justify="right")
    for name, row in report.by_capability().items():
        counts = [str(row[status.value] or "") for status in statuses]
        used = "" if row["budget_used"] is None else f"{row['budget_used']:.0%}"
        table.add_row(name, wording.maker(name, row), *counts, used, f"{row['seconds']:.1f}")
    return table
