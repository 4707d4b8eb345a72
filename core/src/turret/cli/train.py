"""`turret train`: options, configuration file and resumption put together into one run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from .configuration import options, read_toml
from .options import NamedPath

OPTIONS: tuple[tuple[str, type, str], ...] = (
    ("model", str, "Model family: decoder or mini [decoder]"),
    ("tokenizer", str, "A tokenizer.json, as `turret tokenizer train` writes one [bytes]"),
    ("backend", str, "Backend, as in cpu or cuda:1 [TURRET_BACKEND, or the best usable one]"),
    ("layers", int, "Transformer blocks [4]"),
    ("heads", int, "Query heads [4]"),
    ("kv-heads", int, "Key-value heads [decoder: as many as heads; mini: half]"),
    ("width", int, "Model width [128]"),
    ("ff", int, "Hidden width of feed-forward layers [decoder: 4 x width; mini: 8/3 x width]"),
    ("context", int, "Tokens a model sees at once [64]"),
    ("batch", int, "Windows per batch [12]"),
    ("accumulate", int, "Batches per update [1]"),
    ("steps", int, "Updates [2000]"),
    ("lr", float, "Highest learning rate [0.001]"),
    ("min-lr", float, "Learning rate at the end of the cosine [lr / 10]"),
    ("warmup", int, "Steps of linear warmup [100, at most a tenth of the steps]"),
    ("schedule", str, "cosine or constant [cosine]"),
    ("beta1", float, "Adam's decay of first moments [0.9]"),
    ("beta2", float, "Adam's decay of second moments [0.99]"),
    ("weight-decay", float, "Decoupled decay of matrices and tables [0.1]"),
    ("grad-clip", float, "Largest global gradient norm, inf for none [1.0]"),
    ("seed", int, "Decides weights and batches [0]"),
    ("val-fraction", float, "Share of the corpus, at its end, kept for validation [0.1]"),
    ("eval-every", int, "Steps between validations [250]"),
    ("eval-batches", int, "Batches per validation [20]"),
    ("checkpoint-every", int, "Steps between checkpoints [500]"),
    ("keep", int, "Checkpoints kept [3]"),
    ("attention", str, "materialized, or flash: memory linear in the context [materialized]"),
    ("activation-checkpointing", str, "none, or block: less memory for one more forward pass [none]"),
    ("dropout", float, "Rate at which attention, residuals and embeddings are dropped in training [0.0]"),
    ("attention-dropout", float, "The rate for attention probabilities alone [dropout]"),
    ("residual-dropout", float, "The rate for what blocks add alone [dropout]"),
    ("embedding-dropout", float, "The rate for embedded tokens alone [dropout]"),
    ("precision", str, "float32, bfloat16 or float16: what layers compute in; weights stay float32 [float32]"),
    ("optimizer-page", int, "Keep Adam's moments in pages of so many elements [one array a parameter]"),
    ("log", str, "auto, progress or json [auto: a progress bar on a terminal, else JSON lines on stderr]"),
)


@click.command()
@click.option("--out", type=NamedPath(), help="Folder of the run; must be new or empty.")
@click.option(
    "--resume",
    metavar="DIR|auto",
    help="Continue from a checkpoint or run folder; auto: from the last good checkpoint in --out, if there is one.",
)
@click.option("--config", "config_file", type=NamedPath(), help="TOML file with these options as keys.")
@click.option(
    "--corpus",
    multiple=True,
    metavar="PATH",
    help="File or folder of UTF-8 text; may be repeated [builtin:python-docs]",
)
@options(OPTIONS)
@click.option(
    "--capture/--no-capture",
    default=None,
    help="Run a whole step as one compiled program, where the backend compiles [capture]",
)
@click.pass_context
def command(
    ctx: click.Context,
    /,
    out: Path | None,
    resume: str | None,
    config_file: Path | None,
    corpus: tuple[str, ...],
    **given_options: Any,
) -> None:
    """Train a transformer on text.

    The run folder gets checkpoints, metrics.jsonl and a loss curve. What is on the command line beats the configuration
    file, which beats the defaults in brackets. stdout carries one JSON object at the end; progress goes to stderr.
    Ctrl-C finishes the step, saves and exits with 130; SIGTERM with 143.
    """
    from turret.train.config import checked_values

    given = {} if config_file is None else checked_values(read_toml(config_file), source=str(config_file))
    options_given = {name: value for name, value in given_options.items() if value is not None}
    given |= checked_values(options_given, source="the command line")
    if corpus:
        given["corpus"] = corpus
    ctx.exit(_run(out, resume, given))


def _run(out: Path | None, resume: str | None, given: dict[str, Any]) -> int:
    from turret.train.resume import plan
    from turret.train.run import run_training

    from .planned_run import carry_out, exit_status

    planned = plan(out, resume, given)
    result = carry_out(
        planned,
        lambda backend, sink: run_training(
            planned.config, planned.out, backend, resume=planned.checkpoint, observers=[sink]
        ),
    )
    _report(result, planned.out)
    return exit_status(result.done.reason)


def _report(result: Any, out: Path) -> None:
    """The one JSON object on stdout, with what the model makes of a text it never saw, and the loss curve."""
    from turret.generate import SamplingConfig, StopRules, eos_of, generate_text

    from .loss_curve import draw_curve

    curve = draw_curve(out)
    rules = StopRules(max_new_tokens=200, eos_ids=eos_of(result.tokenizer))
    sampling = SamplingConfig(temperature=0.8, top_k=40, seed=result.config.seed)
    pieces = generate_text(result.model, result.tokenizer, result.prompt, sampling=sampling, rules=rules)
    done = result.done
    click.echo(
        json.dumps(
            {
                "steps": done.step,
                "tokens_seen": done.tokens_seen,
                "train_loss": done.train_loss,
                "val_loss": done.val_loss,
                "bytes_per_token": round(result.bytes_per_token, 4),
                "tokens_per_second": round(done.tokens_per_second, 1),
                "seconds": round(done.seconds, 3),
                "skipped_steps": done.skipped_steps,
                "parameters": result.model.parameter_count(),
                "backend": result.backend.spec,
                "device": result.backend.tools.storage.device().name,
                "checkpoint": done.checkpoint,
                "loss_curve": curve,
                "prompt": result.prompt,
                "sample": "".join(pieces),
            },
            ensure_ascii=False,
        )
    )
