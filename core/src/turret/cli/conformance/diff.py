"""`turret conformance diff`: what changed from one report to another, and whether anything was lost."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import click

from turret.conformance.diff import Change, Difference, compare
from turret.conformance.render.wording import asked, visible, when
from turret.conformance.report import Report
from turret.conformance.stored import read

from ..options import NamedPath

SHOWN = 20
MESSAGE = 160


@click.command()
@click.argument("old", type=NamedPath())
@click.argument("new", type=NamedPath())
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.pass_context
def command(ctx: click.Context, old: Path, new: Path, as_json: bool) -> None:
    """Compare two reports that `turret conformance BACKEND --json` wrote: OLD before a change, NEW after it.

    Exits with 1 where something was lost: a case that passed and fails now, a case that is no longer executed, a
    profile or a native slot that is gone. Cases that use much more of their budget are shown, and are no loss.
    """
    before, after = read(old), read(new)
    difference = compare(before, after)
    if as_json:
        click.echo(json.dumps(difference.as_json(), indent=2))
    else:
        for line in lines(before, after, difference):
            click.echo(visible(line))
    ctx.exit(1 if difference.lost else 0)


def lines(before: Report, after: Report, found: Difference) -> Iterator[str]:
    """What a person reads: the two runs, what was lost, what was won, and the verdict."""
    yield f"old: {before.backend}, {asked(before)}, {when(before)}: {before.executed} executed"
    yield f"new: {after.backend}, {asked(after)}, {when(after)}: {after.executed} executed"
    yield from (f"note: {note}" for note in found.notes)
    yield from (f"version: {name} {was} -> {is_now}" for name, was, is_now in found.versions)
    yield from _changes("regression", found.regressions)
    yield from _changes("coverage lost", found.coverage_lost)
    yield from (f"profile lost: {name}{_why(name, after)}" for name in found.profiles_lost)
    yield from (f"native slot lost: {name}" for name in found.native_lost)
    yield from _changes("new failure", found.new_failures)
    yield from _changes("newly expected to fail", found.newly_expected)
    drifts = sorted(found.drifts, key=lambda drift: drift.old - drift.new)
    yield from _some("budget drift", [f"{each.case}: {each.old:.0%} -> {each.new:.0%}" for each in drifts])
    yield from _changes("newly passing", found.newly_passing)
    executed = Counter(each.case.partition("/")[0] for each in found.newly_executed)
    yield from (f"newly executed: {name}, {count} case(s)" for name, count in executed.items())
    yield from (f"profile gained: {name}" for name in found.profiles_gained)
    yield from (f"native slot gained: {name}" for name in found.native_gained)
    yield _verdict(found)


def _changes(heading: str, changes: Sequence[Change]) -> Iterator[str]:
    yield from _some(heading, [f"{each.case}: {each.old} -> {each.new}{_short(each.message)}" for each in changes])


def _some(heading: str, items: Sequence[str]) -> Iterator[str]:
    yield from (f"{heading}: {item}" for item in items[:SHOWN])
    if len(items) > SHOWN:
        yield f"{heading}: ... and {len(items) - SHOWN} more; --json has them all"


def _short(message: str) -> str:
    line = " ".join(message.split())
    return f" ({line if len(line) <= MESSAGE else line[: MESSAGE - 3] + '...'})" if line else ""


def _why(profile: str, after: Report) -> str:
    return " (does not hold)" if profile in after.audit.certified else " (not examined in full)"


def _verdict(found: Difference) -> str:
    counts = {
        "regression(s)": len(found.regressions),
        "case(s) no longer executed": len(found.coverage_lost),
        "profile(s)": len(found.profiles_lost),
        "native slot(s)": len(found.native_lost),
    }
    lost = ", ".join(f"{count} {what}" for what, count in counts.items() if count)
    drifts = f"; {len(found.drifts)} budget(s) drifted" if found.drifts else ""
    return f"LOST: {lost}{drifts}" if found.lost else f"nothing lost{drifts}"
