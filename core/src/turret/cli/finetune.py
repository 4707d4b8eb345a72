"""`turret finetune`: a base model learns from examples."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from .configuration import options, read_toml
from .options import NamedPath

OPTIONS: tuple[tuple[str, type, str], ...] = (
    ("data", str, "JSONL file: prompt and response, or messages, on every line"),
    ("method", str, "full, lora, or qlora: lora on a base packed into 4 bits [lora]"),
    ("backend", str, "Backend, as in cpu or cuda:1 [TURRET_BACKEND, or the best usable one]"),
    ("context", int, "Tokens of a row, into which examples are packed [512]"),
    ("batch", int, "Rows per batch [1]"),
    ("accumulate", int, "Batches per update [1]"),
    ("steps", int, "Updates [200]"),
    ("lr", float, "Highest learning rate [lora and qlora: 0.0002; full: 0.00002]"),
    ("min-lr", float, "Learning rate at the end of the cosine [lr / 10]"),
    ("warmup", int, "Steps of linear warmup [20, at most a tenth of the steps]"),
    ("schedule", str, "cosine or constant [cosine]"),
    ("beta1", float, "Adam's decay of first moments [0.9]"),
    ("beta2", float, "Adam's decay of second moments [0.999]"),
    ("weight-decay", float, "Decoupled decay of matrices and tables [0.0]"),
    ("grad-clip", float, "Largest global gradient norm, inf for none [1.0]"),
    ("seed", int, "Decides adapters, split and order of the examples [0]"),
    ("val-fraction", float, "Share of the examples kept for validation [0.1]"),
    ("eval-every", int, "Steps between validations [50]"),
    ("eval-batches", int, "Batches per validation at most [20]"),
    ("checkpoint-every", int, "Steps between checkpoints [50]"),
    ("keep", int, "Checkpoints kept [2]"),
    ("patience", int, "End after so many validations without a better loss, and take the best weights [never]"),
    ("rank", int, "Rank of the adapters [8]"),
    ("alpha", float, "What adapters add is multiplied by alpha / rank [16.0]"),
    ("adapter-dropout", float, "Rate at which the inputs of adapters are dropped in training [0.0]"),
    ("dropout", float, "Rate at which attention, residuals and embeddings are dropped in training [0.0]"),
    ("block", int, "Values of a packed weight that share a scale [64]"),
    ("scales", str, "Scales of packed weights: float32, dynamic or linear [dynamic]"),
    ("learn", str, "response: the loss is of what is answered; all: of the prompt too [response]"),
    ("long", str, "Examples longer than the context: truncate (the prompt's side), drop or refuse [truncate]"),
    ("skip-bad", int, "Bad lines of the file to pass over at most [0]"),
    ("attention", str, "materialized, or flash: memory linear in the context [materialized]"),
    ("activation-checkpointing", str, "none, or block: less memory for one more forward pass [none]"),
    ("precision", str, "float32, bfloat16 or float16: what layers compute in; weights stay float32 [float32]"),
    ("optimizer-page", int, "Keep Adam's moments in pages of so many elements [one array a parameter]"),
    ("output", str, "both, adapter or merged: what is written at the end [both]"),
    ("log", str, "auto, progress or json [auto: a progress bar on a terminal, else JSON lines on stderr]"),
)


@click.command()
@click.argument("base", required=False)
@click.option("--out", type=NamedPath(), help="Folder of the run; must be new or empty.")
@click.option(
    "--resume",
    metavar="DIR|auto",
    help="Continue from a checkpoint or run folder; auto: from the last good checkpoint in --out, if there is one.",
)
@click.option("--config", "config_file", type=NamedPath(), help="TOML file with these options as keys.")
@click.option(
    "--target",
    "targets",
    multiple=True,
    metavar="NAME",
    help="Layers that get an adapter, by name or pattern; may be repeated [query, value]",
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
    base: str | None,
    out: Path | None,
    resume: str | None,
    config_file: Path | None,
    targets: tuple[str, ...],
    **given_options: Any,
) -> None:
    """Tune a model on examples.

    BASE is a checkpoint or run folder of turret, a folder in a Hugging Face layout, or a GGUF file. Lines of the data
    are {"prompt": ..., "response": ...} or {"messages": [{"role": ..., "content": ...}, ...]}. The run folder gets
    checkpoints, metrics.jsonl, a loss curve, and at the end `adapter` (PEFT's files) and `merged` (a model folder).
    stdout carries one JSON object; progress goes to stderr. Ctrl-C finishes the step, saves and exits with 130; SIGTERM
    with 143.
    """
    from turret.train.finetune.config import checked_values

    given = {} if config_file is None else checked_values(read_toml(config_file), source=str(config_file))
    options_given = {name: value for name, value in given_options.items() if value is not None}
    if base is not None:
        options_given["base"] = base
    given |= checked_values(options_given, source="the command line")
    if targets:
        given["targets"] = targets
    ctx.exit(_run(out, resume, given))


def _run(out: Path | None, resume: str | None, given: dict[str, Any]) -> int:
    from turret.train.finetune import run_finetuning
    from turret.train.finetune.resume import plan

    from .planned_run import carry_out, exit_status

    planned = plan(out, resume, given)
    result = carry_out(
        planned,
        lambda backend, sink: run_finetuning(
            planned.config, planned.out, backend, resume=planned.checkpoint, observers=[sink]
        ),
    )
    _report(result, planned.out)
    return exit_status(result.done.reason)


def _report(result: Any, out: Path) -> None:
    """The one JSON object on stdout, and the loss curve."""
    from dataclasses import asdict

    from .loss_curve import draw_curve

    done, data = result.done, result.data
    click.echo(
        json.dumps(
            {
                "ended": done.reason,
                "steps": done.step,
                "method": result.config.method,
                "train_loss": done.train_loss,
                "val_loss": done.val_loss,
                "best_step": result.best_step,
                "best_val_loss": result.best_val_loss,
                "examples": asdict(data.counts),
                "validation_examples": None if data.validation_counts is None else asdict(data.validation_counts),
                "packed_fill": round(data.sampler.packing.fill, 4),
                "tokens_seen": done.tokens_seen,
                "tokens_per_second": round(done.tokens_per_second, 1),
                "seconds": round(done.seconds, 3),
                "skipped_steps": done.skipped_steps,
                "parameters": result.base.parameters,
                "trained_parameters": result.base.trained_parameters,
                "base_sha256": result.base.fingerprint,
                "backend": result.backend.spec,
                "device": result.backend.tools.storage.device().name,
                "checkpoint": done.checkpoint,
                "loss_curve": draw_curve(out),
                **result.outputs,
            },
            ensure_ascii=False,
        )
    )
