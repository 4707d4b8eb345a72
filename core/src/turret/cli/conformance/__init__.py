"""`turret conformance`: examine a backend, and what is done with the findings."""

from __future__ import annotations

import importlib
from typing import Any, cast

import click

from .run import command as run

SHORT_HELP = {
    "diff": "Compare two reports: regressions, lost coverage, drift of budgets.",
    "faults": "Examine the suite itself: every wrong backend of the catalogue must be found out.",
    "perf": "Measure speed per slot against this machine's own ceilings.",
    "repro": "Write one case as a script that runs without the suite.",
}


class ExamineOrMore(click.Command):
    """`turret conformance BACKEND ...` examines; the first word may be a sub-command instead.

    A click group would take every BACKEND for the name of a sub-command.
    """

    def subcommands(self) -> dict[str, click.Command]:
        """All of them, imported."""
        return {name: _load(name) for name in SHORT_HELP}

    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: Any
    ) -> click.Context:
        if args and args[0] in SHORT_HELP:
            return _load(args[0]).make_context(f"{info_name} {args[0]}", args[1:], parent=parent, **extra)
        return super().make_context(info_name, args, parent=parent, **extra)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        super().format_options(ctx, formatter)
        with formatter.section("Sub-commands"):
            formatter.write_dl(list(SHORT_HELP.items()))


def _load(name: str) -> click.Command:
    return cast(click.Command, importlib.import_module(f"{__name__}.{name}").command)


command = ExamineOrMore(
    "conformance", callback=run.callback, params=run.params, help=run.help, context_settings=run.context_settings
)
