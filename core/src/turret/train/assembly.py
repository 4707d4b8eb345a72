"""The engine of a run from its configuration: model, optimizer and batches, fresh or as a checkpoint left them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from turret.data import Batch, Split, TokenSource, WindowSampler
from turret.models import LanguageModel, build_model
from turret.optim import Adam, decay_groups
from turret.registry import OpenBackend, use_backend
from turret.spi import CheckpointError
from turret.tensor import RandomStream

from .checkpoint import CheckpointContent
from .config import RunConfig
from .engine import Engine
from .objective import NextToken
from .precision import LossScale, compute_format

LOSS_SCALE = "loss_scale"
"""Where a checkpoint's extra values hold the state of the loss scale."""


def assembled(
    config: RunConfig, source: TokenSource, vocabulary: int, backend: OpenBackend, resume: CheckpointContent | None
) -> Engine[Batch]:
    """What trains `config` on the ids of `source` on `backend`, from its first step or from a checkpoint.

    Raises: DataError, ConfigError; CheckpointError where the checkpoint is of another model or damaged.
    """
    batches, validation = _batches(config, source)
    model = _model(config, vocabulary, backend)
    optimizer = _optimizer(config, model)
    precision = compute_format(config.precision, backend, resumed=resume is not None)
    scale = LossScale() if precision == "float16" else None
    if resume is not None:
        _restore(resume, model, optimizer, scale)
    return Engine(
        model,
        optimizer,
        batches,
        config.schedule_function(),
        objective=NextToken(),
        accumulate=config.accumulate,
        validation=validation,
        captured=config.capture,
        dropout=RandomStream(config.seed, backend=backend) if any(config.dropout_rates().values()) else None,
        precision=precision,
        scale=scale,
    )


def _model(config: RunConfig, vocabulary: int, backend: OpenBackend) -> LanguageModel:
    with use_backend(backend):
        model = build_model(config.model_config(vocabulary), seed=config.seed)
    model.save_memory(attention=config.attention, checkpointing=config.activation_checkpointing)
    return model.regularize(**config.dropout_rates())


def _optimizer(config: RunConfig, model: LanguageModel) -> Adam:
    return Adam(
        decay_groups(model.named_parameters(), config.weight_decay),
        lr=config.lr,
        betas=(config.beta1, config.beta2),
        max_norm=config.grad_clip,
        page_elements=config.optimizer_page,
    )


def _restore(resume: CheckpointContent, model: LanguageModel, optimizer: Adam, scale: LossScale | None) -> None:
    resume.require_shapes({name: p.shape for name, p in model.named_parameters()})
    model.load_state_dict(resume.parameters)
    if scale is not None:
        scale.load(load_scale(resume), step=resume.step)
    optimizer.load_state_dict(resume.optimizer, steps=resume.step - (0 if scale is None else scale.skipped))


def load_scale(resume: CheckpointContent) -> Mapping[str, Any]:
    """The stored state of the loss scale. Raises: CheckpointError without one."""
    state = resume.extra.get(LOSS_SCALE)
    if not isinstance(state, Mapping):
        raise CheckpointError(f"{resume.path}: a float16 run without its '{LOSS_SCALE}'; use another checkpoint")
    return state


def _batches(config: RunConfig, source: TokenSource) -> tuple[WindowSampler, tuple[Batch, ...]]:
    """What is learned from, and the fixed batches of the validation, none where nothing is kept for it."""
    split = Split.cut(len(source), val_fraction=config.val_fraction, context=config.context, unit=source.unit)
    size = (config.context, config.batch, config.seed)
    train = WindowSampler(source, split.train, *size)
    if config.val_fraction <= 0:
        return train, ()
    held_out = WindowSampler(source, split.val, *size)
    return train, tuple(held_out.fixed_batches(config.eval_batches))
