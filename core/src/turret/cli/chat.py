"""`turret chat`: a conversation with a model on the terminal, or of lines from a pipe."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click

from .model_options import ModelChoice, chat_parts, model_options
from .options import NamedPath


@click.command()
@click.argument("model", type=NamedPath())
@click.option("--system", metavar="TEXT", help="What the model is told before the conversation.")
@click.option("--max-new-tokens", type=int, default=512, show_default=True, help="Tokens of an answer at most.")
@click.option("--temperature", type=float, default=0.7, show_default=True, help="0 always takes the likeliest token.")
@click.option("--top-k", type=int, default=None, help="Choose among the k likeliest tokens only.")
@click.option(
    "--top-p",
    type=float,
    default=0.95,
    show_default=True,
    help="Choose among the likeliest tokens that reach this mass only.",
)
@click.option("--seed", type=int, default=0, show_default=True, help="The same seed gives the same conversation.")
@model_options
def command(
    model: Path,
    system: str | None,
    max_new_tokens: int,
    temperature: float,
    top_k: int | None,
    top_p: float | None,
    seed: int,
    **given: Any,
) -> None:
    """Talk with a model.

    MODEL is what `turret generate` takes, with a chat template. Every line is a message, and answers stream to stdout.
    Lines that begin with / are commands; /help lists them. Ctrl-C stops an answer, which stays in the conversation as
    far as it came; while you type it clears the line, and twice in a row it leaves. Ctrl-D leaves as well. Lines of a
    pipe are read to their end, without a prompt.
    """
    from turret.generate import SamplingConfig, StopRules
    from turret.generate.conversation import Conversation
    from turret.spi import ConfigError

    from .conversation import Talk, piped_lines, typed_lines
    from .notices import notice

    if sys.stdin is None:  # closed by the caller
        raise ConfigError("stdin is closed, and messages come from there; open it")
    sampling = SamplingConfig(temperature=temperature, top_k=top_k, top_p=top_p, seed=seed)
    StopRules(max_new_tokens=max_new_tokens)
    opened = ModelChoice(model=model, **given).open()
    tokenizer, template = chat_parts(opened)
    conversation = Conversation(
        opened.model,
        tokenizer,
        template,
        sampling=sampling,
        max_new_tokens=max_new_tokens,
        eos_ids=opened.eos_ids,
        system=system,
    )
    if sys.stdin.isatty() and sys.stdout.isatty():
        notice(f"{opened.architecture}, context {conversation.context}; /help lists the commands")
        with Talk(conversation).on_terminal() as talk:
            talk.take(typed_lines(talk))
    else:
        Talk(conversation).take(piped_lines())
