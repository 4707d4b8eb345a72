"""The examples of a run: read, split, tokenized and packed into rows."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import cast

from turret.data import Manifest
from turret.data.example_batches import ExampleBatch, ExampleSampler, split_examples
from turret.data.instructions import Example, Examples, read_examples
from turret.data.packing import Packing, pack
from turret.data.subword import SubwordTokenizer
from turret.data.supervision import ExampleCounts, Learn, Long, tokenize_examples
from turret.spi import DataError

from ..opening import Opened
from .config import FinetuneConfig

_LOG = logging.getLogger("turret")


@dataclass(frozen=True, slots=True, kw_only=True)
class TuningData:
    """What is learned from, and the fixed batches of the validation, none where nothing is kept for it."""

    sampler: ExampleSampler
    validation: tuple[ExampleBatch, ...]
    manifest: Manifest
    counts: ExampleCounts
    validation_counts: ExampleCounts | None


def tuning_data(config: FinetuneConfig, opened: Opened) -> TuningData:
    """Raises: DataError naming file and line, also where the template or the tokenizer cannot mark an end."""
    examples = read_examples(config.data, skip_bad=config.skip_bad)
    _tell_bad(examples)
    train, val = split_examples(examples.items, val_fraction=config.val_fraction, seed=config.seed)
    packing, counts = _packed(config, opened, train, "training", bad=examples.bad)
    sampler = ExampleSampler(packing, config.batch, config.seed, accumulate=config.accumulate)
    validation: tuple[ExampleBatch, ...] = ()
    val_counts = None
    if val:
        val_packing, val_counts = _packed(config, opened, val, "validation")
        held_out = ExampleSampler(val_packing, config.batch, config.seed)
        validation = held_out.fixed_batches(config.eval_batches)
    return TuningData(
        sampler=sampler,
        validation=validation,
        manifest=examples.manifest,
        counts=counts,
        validation_counts=val_counts,
    )


def _packed(
    config: FinetuneConfig, opened: Opened, examples: tuple[Example, ...], part: str, *, bad: int = 0
) -> tuple[Packing, ExampleCounts]:
    try:
        tokenized = tokenize_examples(
            examples,
            cast(SubwordTokenizer, opened.tokenizer),  # a template comes with no other, and nothing else asks for one
            context=config.context,
            template=opened.template,
            learn=cast(Learn, config.learn),
            long=cast(Long, config.long),
            end_ids=opened.eos_ids or None,
            bad=bad,
        )
    except DataError as error:
        raise DataError(f"{config.data}, {part}: {error}") from error
    _tell_left_out(part, tokenized.counts, config)
    return pack(tokenized.examples, config.context), tokenized.counts


def _tell_bad(examples: Examples) -> None:
    if examples.bad:
        named = "; ".join(f"line {each.line}: {each.reason}" for each in examples.bad_lines)
        _LOG.warning(f"{examples.source.path}: {examples.bad} bad lines passed over: {named}")


def _tell_left_out(part: str, counts: ExampleCounts, config: FinetuneConfig) -> None:
    left = {
        "truncated on the side of the prompt": counts.truncated,
        "dropped as too long": counts.dropped,
        "dropped as their response alone is too long": counts.response_too_long,
        "dropped as nothing of them is learned": counts.nothing_learned,
    }
    told = ", ".join(f"{count} {what}" for what, count in left.items() if count)
    if told:
        _LOG.warning(f"of {counts.read} {part} examples at context {config.context}: {told}")
