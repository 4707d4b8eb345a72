"""`turret generate`: a trained model continues a text."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import click

from .options import NamedPath


@click.command()
@click.argument("checkpoint", type=NamedPath())
@click.option("--prompt", required=True, help="Text to continue.")
@click.option("--max-new-tokens", type=int, default=256, show_default=True, help="Tokens to add at most.")
@click.option("--temperature", type=float, default=0.8, show_default=True, help="0 always takes the likeliest token.")
@click.option("--top-k", type=int, default=None, help="Choose among the k likeliest tokens only.")
@click.option("--top-p", type=float, default=None, help="Choose among the likeliest tokens that reach this mass only.")
@click.option("--seed", type=int, default=0, show_default=True, help="The same seed gives the same text.")
@click.option("--backend", default=None, help="Backend, as in cpu or cuda:1.")
def command(
    checkpoint: Path,
    prompt: str,
    max_new_tokens: int,
    temperature: float,
    top_k: int | None,
    top_p: float | None,
    seed: int,
    backend: str | None,
) -> None:
    """Continue a text with a trained model.

    CHECKPOINT is a checkpoint folder, or a run folder, whose latest checkpoint is meant. The text streams to stdout as
    it is made, after the prompt, and ends at the end-of-sequence token of models that have one.
    """
    from turret.data.tokenizers import utf8
    from turret.generate import SamplingConfig, StopRules, generate_text
    from turret.registry import open_backend
    from turret.train.load import load_model

    sampling = SamplingConfig(temperature=temperature, top_k=top_k, top_p=top_p, seed=seed)
    rules = StopRules(max_new_tokens=max_new_tokens)
    trained = load_model(checkpoint, open_backend(backend))
    rules = replace(rules, eos_id=trained.tokenizer.eos_id)
    pieces = generate_text(trained.model, trained.tokenizer, prompt, sampling=sampling, rules=rules)
    click.echo(utf8(prompt), nl=False)
    for piece in pieces:
        click.echo(piece.encode(), nl=False)
    click.echo()
