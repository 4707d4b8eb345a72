"""`turret conformance repro CASE`: one case as a script that runs without the suite."""

from __future__ import annotations

import shlex
from pathlib import Path

import click

from turret.conformance.recording import SCRIPT
from turret.conformance.render.wording import visible
from turret.conformance.repro import write

from ..options import NamedPath
from .foreign import printing_to_stderr
from .options import seed_option, timeout_option


@click.command()
@click.argument("case")
@click.option("--backend", required=True, metavar="BACKEND", help="The backend to run it on.")
@seed_option
@click.option("--out", type=NamedPath(), metavar="FOLDER", help="Where to write.  [default: repro-CASE]")
@timeout_option
def command(case: str, backend: str, seed: int, out: Path | None, timeout_s: float) -> None:
    """Write CASE as a folder: a script of the calls it makes, their inputs, what is wanted, and versions.

    The script needs turret and the backend, not the suite. Where the case ends its process, the script ends with the
    call that did it.
    """
    folder = out or Path(f"repro-{case.replace('/', '-')}")
    with printing_to_stderr():
        result = write(case, backend, folder, seed=seed, timeout_s=timeout_s)
    click.echo(visible(f"{result.case}: {result.status.value}" + (f": {result.message}" if result.message else "")))
    click.echo(f"run it alone: python {shlex.quote(str(folder / SCRIPT))}")
