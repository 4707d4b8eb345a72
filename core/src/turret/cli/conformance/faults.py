"""`turret conformance faults`: the suite's own examination, against a catalogue of wrong backends."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import click

from turret.conformance.faults.catalogue import find
from turret.conformance.faults.fault import Fault
from turret.conformance.faults.run import Kill, kill_all
from turret.conformance.profiles import PROFILES
from turret.registry import Registry

from ..options import NamedPath
from .foreign import printing_to_stderr
from .options import seed_option
from .targets import checked, write


@click.command()
@click.option("--backend", default="auto", show_default=True, metavar="BACKEND", help="The good backend to make wrong.")
@click.option("--fault", "names", multiple=True, metavar="NAME", help="Only this fault; repeatable.")
@click.option(
    "--profile",
    type=click.Choice(list(PROFILES)),
    default="full",
    show_default=True,
    help="The profile that has to find them out; faults outside its scope are left out.",
)
@click.option("--one-each", is_flag=True, help="Only the first fault of every capability.")
@seed_option
@click.option("--json", "json_to", type=NamedPath(), metavar="FILE", help="Write the kill table as JSON.")
@click.pass_context
def command(
    ctx: click.Context,
    backend: str,
    names: tuple[str, ...],
    profile: str,
    one_each: bool,
    seed: int,
    json_to: Path | None,
) -> None:
    """Examine the suite itself: wrap a good backend in every fault of the catalogue, and see which case notices.

    Each fault is a kind of error that a real backend had; --json links its report. A fault runs the cases of its
    capability up to the first that fails with it and passes without. Exits with 1 where one survives: a hole in the
    suite.
    """
    from turret.cli.tables import show

    targets = checked({"--json": json_to})
    faults = find(names)
    if one_each:
        faults = tuple({fault.capability: fault for fault in reversed(faults)}.values())[::-1]
    with printing_to_stderr():
        opened = Registry().open(backend)
        with closing(opened.backend):
            kills = list(_told(kill_all(opened, seed=seed, profile=profile, faults=faults), len(faults)))
    table = {"backend": opened.spec, "profile": profile, "seed": seed, "kills": [_as_json(each) for each in kills]}
    text = json.dumps(table, indent=1) + "\n"
    lost = [reason for flag, path in targets.items() if (reason := write(path, text, flag))]
    show(("FAULT", "CAPABILITY", "CASES", "KILLED BY"), [_cells(each) for each in kills])
    hunted = [each for each in kills if each.expressible]
    survivors = [each.fault.name for each in hunted if each.killed_by is None]
    seconds = sum(each.seconds for each in kills)
    killed = f"{len(hunted) - len(survivors)} of {len(hunted)} faults killed in {seconds:.0f} s"
    alive = f"; survivors: {', '.join(survivors)}" if survivors else ""
    click.echo(f"{opened.spec}, profile {profile}, seed {seed}: {killed}{alive}")
    if lost:
        raise click.ClickException("; ".join(lost))
    ctx.exit(1 if survivors or not hunted else 0)


def _told(kills: Iterator[Kill], total: int) -> Iterator[Kill]:
    """Passes the kills on and says on stderr how far it has come."""
    for n, each in enumerate(kills, 1):
        if sys.stderr.isatty() or each.killed_by is None:
            click.echo(f"{n} of {total}: {each.fault.name}: {_end(each)}", err=True)
        yield each


def _end(each: Kill) -> str:
    if not each.expressible:
        return f"not expressible here: {each.message}"
    return each.killed_by or f"SURVIVED: {each.message}"


def _cells(each: Kill) -> Sequence[str]:
    return each.fault.name, each.fault.capability, str(each.cases), _end(each)


def _as_json(each: Kill) -> dict[str, Any]:
    fault: Fault = each.fault
    return {
        "fault": fault.name,
        "capability": fault.capability,
        "kind": fault.kind,
        "url": fault.url,
        "summary": fault.summary,
        "killed_by": each.killed_by,
        "expressible": each.expressible,
        "message": each.message,
        "cases": each.cases,
        "seconds": round(each.seconds, 3),
    }
