"""docs/reference/cli.md: every command and option of `turret`, from the click commands themselves."""

from __future__ import annotations

import inspect

import click

from turret.cli.app import turret
from turret.cli.conformance import ExamineOrMore

HEAD = """\
# The command line

`turret COMMAND --help` prints the same. stdout carries a command's result and nothing else; progress and logs go to
stderr. Exit status: 0 success, 2 usage or configuration, 130 and 143 after SIGINT and SIGTERM, 1 everything else.
"""


def page() -> str:
    """The whole page."""
    context = click.Context(turret, info_name="turret")
    parts = [HEAD.strip(), options(turret, context)]
    for name in turret.list_commands(context):
        command = turret.get_command(context, name)
        if command is not None and not command.hidden:
            parts.append(section(name, command, context))
            parts += subsections(name, command, context)
    return "\n\n".join(part for part in parts if part) + "\n"


def section(name: str, command: click.Command, parent: click.Context) -> str:
    """One command: how to call it, what it does, its options."""
    context = click.Context(command, info_name=name, parent=parent)
    usage = " ".join(["turret", name, *command.collect_usage_pieces(context)])
    text = inspect.cleandoc(command.help or "").replace("\b\n", "")
    return "\n\n".join(
        part for part in (f"## `turret {name}`", f"```text\n{usage}\n```", text, options(command, context)) if part
    )


def subsections(name: str, command: click.Command, parent: click.Context) -> list[str]:
    """One section per sub-command of a command that has some beside its own arguments."""
    below: dict[str, click.Command] = {}
    if isinstance(command, ExamineOrMore):
        below = dict(command.subcommands())
    elif isinstance(command, click.Group):
        below = dict(command.commands)
    return [section(f"{name} {word}", each, parent) for word, each in below.items()]


def options(command: click.Command, context: click.Context) -> str:
    """A table of the options, as click's own help words them."""
    listed = [each for each in command.get_params(context) if isinstance(each, click.Option) and each.name != "help"]
    records = [record for each in listed if (record := each.get_help_record(context)) is not None]
    rows = [f"| `{cell(flags)}` | {cell(text)} |" for flags, text in records]
    return "\n".join(["| option | meaning |", "|---|---|", *rows]) if rows else ""


def cell(text: str) -> str:
    """`text` on one line, without ending the cell of a table."""
    return " ".join(text.split()).replace("|", "\\|")
