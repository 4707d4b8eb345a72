"""`turret doctor`: the whole story of which backend would be chosen and why."""

from __future__ import annotations

import contextlib
import json
import sys
from dataclasses import asdict

import click

from turret.registry import Registry, Trace, trace
from turret.registry.trace import Candidate

from .app import FAILURE
from .options import time_limit


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@time_limit
@click.pass_context
def command(ctx: click.Context, as_json: bool, time_limit: float) -> None:
    """Tell which backend would be chosen, and what speaks against the others.

    Loads every plugin and runs its probe in a process of its own. Exits with 1 where no backend can be used.
    """
    with contextlib.redirect_stdout(sys.stderr):
        found = trace(Registry(probe_seconds=time_limit))
    if as_json:
        click.echo(json.dumps(asdict(found), indent=2))
    else:
        _print(found)
    if not found.choice:
        ctx.exit(FAILURE)


def _print(found: Trace) -> None:
    from .tables import show

    click.echo("  ".join(f"{name} {version}" for name, version in found.versions.items()))
    click.echo(
        "variables: " + (", ".join(f"{name}={value!r}" for name, value in found.variables.items()) or "none set")
    )
    for warning in found.warnings:
        click.echo(f"warning: {warning}")
    if found.candidates:
        click.echo()
        headings = ("NAME", "SCORE", "STATE", "DISTRIBUTION", "SPI", "PROBE", "BLOCKED BY")
        show(headings, [_cells(candidate) for candidate in found.candidates])
        click.echo()
    for candidate in found.candidates:
        if candidate.traceback:
            click.echo(f"{candidate.name} of {candidate.distribution} {candidate.version} failed like this:")
            click.echo(candidate.traceback)
    click.echo(f"choice: {found.choice or 'none'} ({found.because})")


def _cells(candidate: Candidate) -> tuple[str, ...]:
    return (
        candidate.name,
        str(candidate.score) if candidate.spi else "",
        candidate.state,
        f"{candidate.distribution} {candidate.version}",
        candidate.spi,
        "" if candidate.probe_seconds is None else f"{candidate.probe_seconds:.2f} s",
        candidate.blocked_by,
    )
