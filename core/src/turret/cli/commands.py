"""The table of sub-commands, and the group that loads a module only when its command is called."""

from __future__ import annotations

import difflib
import importlib
from typing import cast

import click

SHORT_HELP = {
    "backends": "List the backends: installed, loadable and, with --probe, usable.",
    "chat": "Talk with a model.",
    "conformance": "Examine a backend: does it keep the contract?",
    "convert": "Write a model in another layout.",
    "doctor": "Tell which backend would be chosen, and what speaks against the others.",
    "finetune": "Tune a model on examples.",
    "generate": "Continue a text with a model.",
    "inspect": "Describe a model or a checkpoint.",
    "new-backend": "Write a new backend as an installable distribution.",
    "tokenizer": "Make the tokenizer that a model is trained with.",
    "train": "Train a transformer on text.",
}


class LazyGroup(click.Group):
    """Knows every command by name; `turret.cli.<name>:command`, dashes as underscores, is imported when asked for."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(SHORT_HELP)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in SHORT_HELP:
            return None
        return cast(click.Command, importlib.import_module(f"turret.cli.{cmd_name.replace('-', '_')}").command)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        if name not in SHORT_HELP and not name.startswith("-"):
            close = difflib.get_close_matches(name, SHORT_HELP, n=1)
            guess = f"did you mean {close[0]!r}?" if close else f"there are: {', '.join(SHORT_HELP)}"
            raise click.UsageError(f"no command {name!r}; {guess}", ctx)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(SHORT_HELP.items()))
