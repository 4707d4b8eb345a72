"""`turret backends`: which backends are here, how far each one gets, and how to install the others."""

from __future__ import annotations

import contextlib
import json
import sys
from dataclasses import asdict, dataclass, replace

import click

from turret.registry import Entry, Registry
from turret.registry.names import KNOWN, pip_command

from .options import time_limit


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One line of the listing. `note` is what keeps the backend from going further, or how to install it."""

    name: str
    state: str
    distribution: str = ""
    version: str = ""
    spi: str = ""
    native: list[str]
    note: str = ""


@click.command()
@click.option("--probe", is_flag=True, help="Run one real operation on each backend's default device.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON array.")
@time_limit
def command(probe: bool, as_json: bool, time_limit: float) -> None:
    """List the backends: installed, loadable and, with --probe, usable.

    installed: the plugin is there but cannot be loaded. loadable: its description was read and fits.
    usable: its default device computed something just now. absent: not installed.
    """
    registry = Registry(probe_seconds=time_limit)
    # A plugin that prints while it is imported must not spoil the result.
    with contextlib.redirect_stdout(sys.stderr):
        rows = [_row(registry, entry, probe) for entry in registry.installed()]
    here = {row.name for row in rows}
    rows += [Row(name=word, state="absent", native=[], note=pip_command(word)) for word in KNOWN if word not in here]
    if as_json:
        click.echo(json.dumps([asdict(row) for row in rows], indent=2))
        return
    from .tables import show

    headings = ("NAME", "STATE", "DISTRIBUTION", "SPI", "NATIVE SLOTS, OR WHAT IS MISSING")
    show(headings, [_cells(row) for row in rows])


def _row(registry: Registry, entry: Entry, probe: bool) -> Row:
    row = Row(
        name=entry.name,
        state=entry.state,
        distribution=entry.distribution,
        version=entry.version,
        native=[],
        note=str(entry.error or ""),
    )
    if entry.info is None:
        return row
    row = replace(row, spi=entry.info.spi, native=sorted(entry.info.provides))
    if not probe:
        return row
    reason = registry.verdict(entry.info).reason
    return replace(row, state="usable") if reason is None else replace(row, note=reason)


def _cells(row: Row) -> tuple[str, ...]:
    return row.name, row.state, f"{row.distribution} {row.version}".strip(), row.spi, row.note or " ".join(row.native)
