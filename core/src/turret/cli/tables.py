"""Rows of text in aligned columns, as wide as the terminal or, in a pipe, as wide as they need to be.

Not rich: importing its tables would take a third of the time in which `turret backends` answers.
"""

from __future__ import annotations

import shutil
import sys
import textwrap
from collections.abc import Sequence

import click

GAP = "  "


def show(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Prints the rows on stdout; on a terminal the last column wraps in the room that is left."""
    columns = [max(map(len, column)) for column in zip(headings, *rows, strict=True)][:-1]
    indent = sum(columns) + len(GAP) * len(columns)
    room = max(20, shutil.get_terminal_size().columns - indent) if sys.stdout.isatty() else sys.maxsize
    for row in (headings, *rows):
        start = GAP.join(cell.ljust(width) for cell, width in zip(row, columns, strict=False)) + GAP
        lines = textwrap.wrap(row[-1], room) or [""]
        click.echo((start + f"\n{' ' * indent}".join(lines)).rstrip())
