"""A trained model from a checkpoint, ready to use."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from turret.data import Tokenizer
from turret.models import LanguageModel, build_model, model_config
from turret.registry import OpenBackend, use_backend
from turret.spi import CheckpointError, ConfigError

from .checkpoint import read_checkpoint
from .checkpoint.content import FINETUNE
from .room import require_room
from .text import stored_tokenizer


@dataclass(frozen=True, slots=True, kw_only=True)
class Trained:
    """A model with the tokenizer it was trained with."""

    model: LanguageModel
    tokenizer: Tokenizer
    step: int
    path: Path


def load_model(path: Path, backend: OpenBackend) -> Trained:
    """The model of a checkpoint folder, or of a run folder's latest checkpoint, on `backend`.

    Raises: CheckpointError.
    """
    content = read_checkpoint(path, optimizer=False)
    where = content.path or path
    if FINETUNE in content.extra:
        raise CheckpointError(
            f"{where}: a checkpoint of turret finetune, which is no model by itself; give the run's folder 'merged', "
            f"or the base with the run's folder 'adapter'"
        )
    try:
        config = model_config(content.model["kind"], content.model["config"])
    except ConfigError as error:
        raise CheckpointError(f"{where}: its model cannot be built: {error}") from error
    tokenizer = stored_tokenizer(content)
    if tokenizer.vocabulary_size > config.vocabulary:
        raise CheckpointError(
            f"{where}: its tokenizer has {tokenizer.vocabulary_size} ids and its model {config.vocabulary}; not a pair"
        )
    # Before the model exists: what an edited configuration claims must not decide how much memory is taken.
    stored = sum(value.size for value in content.parameters.values())
    if stored != config.parameter_count():
        raise CheckpointError(
            f"{where}: its configuration means {config.parameter_count()} parameters, its file holds {stored}; use "
            f"another checkpoint"
        )
    try:
        require_room(config)
    except ConfigError as error:
        raise CheckpointError(f"{where}: {error}") from error
    with use_backend(backend):
        model = build_model(config)
    content.require_shapes({name: p.shape for name, p in model.named_parameters()})
    model.load_state_dict(content.parameters)
    return Trained(model=model, tokenizer=tokenizer, step=content.step, path=where)
