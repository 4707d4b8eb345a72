"""`turret conformance perf BACKEND`: time every slot beside the machine's own ceilings."""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path

import click

from turret.conformance.perf.measure import Measured, advise, as_json, ceilings, doubts, in_words, measure
from turret.registry import Registry
from turret.spi import OPTIONAL_SLOTS, REQUIRED_SLOTS

from ..options import NamedPath, Seconds
from .foreign import printing_to_stderr
from .targets import checked, write

SLOTS = (*(slot for slot in REQUIRED_SLOTS if slot != "storage"), *OPTIONAL_SLOTS)


@click.command()
@click.argument("backend")
@click.option(
    "--capability", "slots", multiple=True, type=click.Choice(SLOTS), metavar="C", help="Only this slot; repeatable."
)
@click.option(
    "--seconds",
    type=Seconds(0.01, 60.0),
    default=0.2,
    show_default=True,
    help="How long to time each call, after warming up.",
)
@click.option("--json", "json_to", type=NamedPath(), metavar="FILE", help="Write the figures as JSON.")
def command(backend: str, slots: tuple[str, ...], seconds: float, json_to: Path | None) -> None:
    """Time every slot of BACKEND at the sizes of a small model.

    Each call stands beside the roofline: the time it would take at the rate of a large matrix product, or of adding two
    large arrays, whichever is longer, both measured in this run. Ends with the derived slots that a training step would
    gain most from, if they were native.
    """
    from turret.cli.tables import show

    targets = checked({"--json": json_to})
    with printing_to_stderr():
        opened = Registry().open(backend)
        with closing(opened.backend):
            found = ceilings(opened.tools, seconds=5 * seconds)
            measured = list(measure(opened, found, slots=slots, seconds=seconds))
    text = json.dumps(as_json(found, measured), indent=1) + "\n"
    lost = [reason for flag, path in targets.items() if (reason := write(path, text, flag))]
    streams = ", ".join(f"{rate:.2g} GB/s over {size / 2**20:.0f} MiB" for size, rate in found.gbytes.items())
    click.echo(f"ceilings of {opened.spec}: {found.gflops:.1f} GFLOP/s in a product; {streams}")
    show(("CALL", "MADE BY", "MS", "GFLOP/S", "GB/S", "OF ROOFLINE"), [_cells(each) for each in measured])
    for line in in_words(advise(measured)):
        click.echo(line)
    if doubt := doubts(found, measured):
        click.echo(doubt)
    if lost:
        raise click.ClickException("; ".join(lost))


def _cells(each: Measured) -> tuple[str, ...]:
    made_by = "native" if each.native else "derived"
    return (
        each.name,
        made_by,
        f"{each.seconds * 1e3:.3f}",
        f"{each.gflops:.1f}",
        f"{each.gbytes:.2f}",
        f"{each.roofline:.0%}",
    )
