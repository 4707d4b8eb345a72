"""`turret backends`: which backends are here, how far each one gets, and how to install the others."""

from __future__ import annotations

import contextlib
import json
import sys
from dataclasses import asdict, dataclass, replace

import click

from turret.registry import Entry, Registry
from turret.registry.names import KNOWN, Spec, pip_command

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
@click.argument("name", required=False)
@click.option("--probe", is_flag=True, help="Run one real operation on each backend's default device.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON array.")
@time_limit
def command(name: str | None, probe: bool, as_json: bool, time_limit: float) -> None:
    """List the backends: installed, loadable and, with --probe, usable. With NAME, describe one.

    installed: the plugin is there but cannot be loaded. loadable: its description was read and fits.
    usable: its default device computed something just now. absent: not installed.
    """
    registry = Registry(probe_seconds=time_limit)
    if name is not None:
        _describe(registry, name, as_json)
        return
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


def _describe(registry: Registry, name: str, as_json: bool) -> None:
    """Everything a plugin says of its backend, and what follows from it; nothing is opened."""
    from turret.derived import ON_HOST
    from turret.spi import OPTIONAL_SLOTS

    with contextlib.redirect_stdout(sys.stderr):
        info = registry.loadable(Spec.parse(name))
        version = next((e.version for e in registry.installed() if e.name == info.name), "")
    composed = [slot for slot in OPTIONAL_SLOTS if slot not in info.provides]
    host = sorted(info.on_host) + [f"{slot}: {ON_HOST[slot]}" for slot in composed if slot in ON_HOST]
    facts: dict[str, str | list[str]] = {
        "name": info.name,
        "distribution": f"{info.distribution} {version}".strip(),
        "spi": info.spi,
        "devices": info.devices or "one, without a name",
        "dtypes": sorted(info.dtypes),
        "native": sorted(info.provides),
        "composed": composed,
        "on the host": host,
    }
    if as_json:
        click.echo(json.dumps(facts, indent=2))
        return
    width = max(map(len, facts)) + 2
    for title, value in facts.items():
        lines = [" ".join(value)] if isinstance(value, list) and title != "on the host" else value
        for i, line in enumerate([lines] if isinstance(lines, str) else lines or ["nothing"]):
            click.echo(f"{'' if i else title:{width}}{line}".rstrip())


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
