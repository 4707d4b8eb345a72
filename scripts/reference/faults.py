"""docs/reference/faults.md: the catalogue of wrong backends, where each was met, and which case finds it."""

from __future__ import annotations

import json
from pathlib import Path

from turret.conformance.faults.catalogue import CATALOGUE
from turret.conformance.faults.fault import Fault

from .cli import cell

KILLS = Path(__file__).resolve().parents[2] / "docs" / "reference" / "kills.json"

HEAD = """\
# Wrong backends

The suite is examined with backends that are wrong on purpose: each has one kind of error that a real backend had, put
into a good one. {killed} of {hunted} are found on `{backend}` (seed {seed}). `turret conformance faults` hunts them
again; `python scripts/conformance_reports.py --faults {backend}` stores what it found here.

The reports are other projects' own. What is put into a turret slot is the same kind of error, not the same code.
"""


def page() -> str:
    """The whole page, one row a fault."""
    table = json.loads(KILLS.read_text(encoding="utf-8"))
    killed: dict[str, str | None] = table["killed"]
    head = HEAD.format(
        killed=sum(case is not None for case in killed.values()),
        hunted=len(killed),
        backend=table["backend"],
        seed=table["seed"],
    )
    rows = [row(each, killed.get(each.name)) for each in CATALOGUE]
    heading = "| fault | capability | what happened there | what is wrong here | found by |\n|---|---|---|---|---|"
    return f"{head}\n{heading}\n" + "\n".join(rows) + "\n"


def row(fault: Fault, case: str | None) -> str:
    """One line of the table."""
    where = "/".join(fault.url.split("/")[3:5])
    cells = (
        f"`{fault.name}`",
        fault.capability,
        f"{cell(fault.report)} ([{where}]({fault.url}))",
        cell(fault.summary),
        f"`{case}`" if case else "nothing",
    )
    return f"| {' | '.join(cells)} |"
