"""`turret generate`: a model continues a text, or answers one message."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from .model_options import ModelChoice, chat_parts, model_options
from .options import NamedPath

if TYPE_CHECKING:
    from turret.train.opening import Opened


@click.command()
@click.argument("model", type=NamedPath())
@click.option("--prompt", required=True, help="Text to continue, or with --chat the message.")
@click.option("--chat", is_flag=True, help="The prompt is a user's message, and the model answers it.")
@click.option("--max-new-tokens", type=int, default=256, show_default=True, help="Tokens to add at most.")
@click.option("--temperature", type=float, default=0.8, show_default=True, help="0 always takes the likeliest token.")
@click.option("--top-k", type=int, default=None, help="Choose among the k likeliest tokens only.")
@click.option("--top-p", type=float, default=None, help="Choose among the likeliest tokens that reach this mass only.")
@click.option("--seed", type=int, default=0, show_default=True, help="The same seed gives the same text.")
@click.option("--json", "as_json", is_flag=True, help="Report tokens and their rates on stderr, as one JSON object.")
@model_options
def command(
    model: Path,
    prompt: str,
    chat: bool,
    max_new_tokens: int,
    temperature: float,
    top_k: int | None,
    top_p: float | None,
    seed: int,
    as_json: bool,
    **given: Any,
) -> None:
    """Continue a text with a model.

    MODEL is a checkpoint or run folder of turret (the latest checkpoint, or what a fine-tuning run merged), a folder in
    a Hugging Face layout, or a GGUF file. The text streams to stdout as it is made, after the prompt, and ends at the
    tokens that end a text for this model. With --chat stdout carries the answer alone.
    """
    from turret.data.tokenizers import utf8
    from turret.generate import SamplingConfig, StopRules, generate_text
    from turret.spi import ConfigError

    from .notices import switch_to_json
    from .screen import for_stdout

    sampling = SamplingConfig(temperature=temperature, top_k=top_k, top_p=top_p, seed=seed)
    rules = StopRules(max_new_tokens=max_new_tokens)
    if not prompt:
        raise ConfigError("--prompt is empty; give a text of at least one character")
    utf8(prompt)
    if as_json:
        switch_to_json()
    opened = ModelChoice(model=model, **given).open()
    rules = replace(rules, eos_ids=opened.eos_ids)
    ids = _prompt_ids(opened, prompt, chat=chat)
    rates = _Rates()
    decoding = rates.watched(opened, expected=len(ids) + max_new_tokens)
    if not chat:
        click.echo(for_stdout(prompt).encode(), nl=False)
    for piece in generate_text(opened.model, opened.tokenizer, ids, sampling=sampling, rules=rules, decoding=decoding):
        click.echo(for_stdout(piece).encode(), nl=False)
    click.echo()
    if as_json:
        click.echo(json.dumps(rates.described(len(ids))), err=True)


def _prompt_ids(opened: Opened, prompt: str, *, chat: bool) -> list[int]:
    if not chat:
        return [*opened.tokenizer.prefix, *opened.tokenizer.encode(prompt).tolist()]
    tokenizer, template = chat_parts(opened)
    messages = [{"role": "user", "content": prompt}]
    ids: list[int] = template.encode(tokenizer, messages, add_generation_prompt=True).tolist()
    return ids


@dataclass
class _Rates:
    """Seconds of each step: the first reads the prompt, each makes a token."""

    seconds: list[float] = field(default_factory=list)

    def watched(self, opened: Opened, *, expected: int) -> Any:
        """A Decoding that notes what its steps take."""
        from turret.generate import Decoding

        seconds = self.seconds

        class Watched(Decoding):
            def push(self, ids: Sequence[int]) -> Any:
                begin = time.perf_counter()
                logits = super().push(ids)
                seconds.append(time.perf_counter() - begin)
                return logits

        return Watched(opened.model, expected=expected)

    def described(self, prompt: int) -> dict[str, int | float | None]:
        """prompt: its tokens. A rate is None where nothing was measured."""
        prefill, rest = self.seconds[0], self.seconds[1:]
        return {
            "prompt_tokens": prompt,
            "new_tokens": len(self.seconds),
            "prefill_seconds": round(prefill, 4),
            "prefill_tokens_per_second": round(prompt / prefill, 1),
            "decode_tokens_per_second": round(len(rest) / sum(rest), 1) if rest else None,
        }
