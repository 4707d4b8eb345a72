"""Rows of text in aligned columns, as wide as the terminal or, in a pipe, as wide as they need to be."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence

import click


def show(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Prints the rows on stdout; the last column takes the room that is left and wraps."""
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for heading in headings[:-1]:
        table.add_column(heading, no_wrap=True)
    table.add_column(headings[-1], overflow="fold")
    for row in rows:
        table.add_row(*row)
    console = Console(width=None if sys.stdout.isatty() else 10_000, markup=False, highlight=False, emoji=False)
    with console.capture() as printed:
        console.print(table)
    click.echo("\n".join(line.rstrip() for line in printed.get().splitlines()))
