"""The base of a fine-tuning run: loaded, packed and adapted as its method says, and known by its fingerprint."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import cast

import numpy as np

from turret.models import Decoder, LanguageModel, Mini
from turret.models.weights.folder import has_packed_weights
from turret.nn import AdapterSet, PackedLinear, attach_adapters, base_fingerprint
from turret.registry import OpenBackend
from turret.spi import CheckpointError, ConfigError, Host, NonFiniteError, ScaleCode

from ..checkpoint import CheckpointContent
from ..checkpoint.content import FINETUNE
from ..opening import Opened, open_model
from ..room import PAGES, require_room
from ..values import shown
from .config import FinetuneConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class Base:
    """A base ready to be tuned. adapters: what is learned, None where that is the model itself.

    parameters: of the base, packed or not.
    """

    opened: Opened
    fingerprint: str
    adapters: AdapterSet | None
    parameters: int

    @property
    def model(self) -> LanguageModel:
        return self.opened.model

    @property
    def trained_parameters(self) -> int:
        """Numbers that are learned."""
        return self.parameters if self.adapters is None else self.adapters.parameter_count()

    def state(self) -> dict[str, Host]:
        """What is learned, by name, on the host."""
        return self.model.state_dict() if self.adapters is None else self.adapters.state_dict()

    def load(self, state: Mapping[str, Host]) -> None:
        """Takes what `state` gave. Raises: ConfigError, ShapeError; nothing is changed then."""
        if self.adapters is None:
            self.model.load_state_dict(state)
        else:
            self.adapters.load_state_dict(state)

    def plain_state(self) -> dict[str, Host]:
        """The values of a model without adapters as an unpacked one has them, by name."""
        packed = {name: layer for name, layer in self.model.named_modules() if isinstance(layer, PackedLinear)}
        weights = {f"{name}.weight": layer.weight.unpack().numpy() for name, layer in packed.items()}
        return self.model.state_dict() | weights

    def restore(self, resume: CheckpointContent) -> None:
        """What a checkpoint has learned. Raises: CheckpointError where it is of another shape."""
        resume.require_shapes({name: value.shape for name, value in self.state().items()})
        self.load(resume.parameters)


def open_base(config: FinetuneConfig, backend: OpenBackend) -> Base:
    """Loads `config.base` on `backend`.

    Raises: as `open_model` and `attach_adapters`; ConfigError for a context that the base does not have, for sizes that
    no memory holds, and for a method that does not fit packed weights; NonFiniteError naming a parameter.
    """
    packing = config.method == "qlora" and not has_packed_weights(Path(config.base))
    opened = open_model(
        Path(config.base),
        backend,
        quantize="nf4" if packing else None,
        block=config.block,
        scales=cast(ScaleCode, config.scales),
    )
    model = opened.model
    if config.context > model.context:
        raise ConfigError(f"context {config.context}, and the base reads {model.context} tokens; make it smaller")
    packed = [module for module in model.modules() if isinstance(module, PackedLinear)]
    if packed and config.method != "qlora":
        raise ConfigError(
            f"{config.base}: its weights have 4 bits, which method {config.method} does not take; use qlora"
        )
    parameters = model.parameter_count() + sum(math.prod(layer.shape) for layer in packed)
    model.save_memory(attention=config.attention, checkpointing=config.activation_checkpointing)
    model.regularize(residual=config.dropout, embedding=config.dropout, attention=config.dropout)
    fingerprint = base_fingerprint(model)
    adapters = _adapted(config, model)
    base = Base(opened=opened, fingerprint=fingerprint, adapters=adapters, parameters=parameters)
    _require_room(config, base)
    return base


def _adapted(config: FinetuneConfig, model: LanguageModel) -> AdapterSet | None:
    if config.method == "full":
        for name, parameter in model.named_parameters():
            if not np.isfinite(parameter.numpy()).all():
                raise NonFiniteError(f"parameter {name} of the base has NaN or infinite values; use another base")
        return None
    return attach_adapters(
        model,
        rank=config.rank,
        alpha=config.alpha,
        targets=config.targets,
        dropout=config.adapter_dropout,
        seed=config.seed,
    )


def _require_room(config: FinetuneConfig, base: Base) -> None:
    """Raises: ConfigError for a step that no memory here holds, and for pages too many to work through."""
    if isinstance(base.model, (Decoder, Mini)):
        window = config.batch * config.context
        saving = config.activation_checkpointing != "none" or config.precision != "float32"
        require_room(
            replace(base.model.config, vocabulary=1),  # only what is learned has logits, and that may be little
            tokens=window,
            held=window * config.accumulate,
            copies={"full": 4, "lora": 1}.get(config.method, 0),
            saving=saving,
        )
    page = config.optimizer_page
    if page is not None and (pages := -(-base.trained_parameters // page)) > PAGES:
        raise ConfigError(
            f"optimizer-page {page} cuts the {base.trained_parameters} trained parameters into {pages} pages, each of "
            f"them an array in every step; wanted at least {-(-base.trained_parameters // PAGES)}"
        )


def tuned_facts(checkpoint: CheckpointContent) -> Mapping[str, object]:
    """What a checkpoint says of its base and its validations. Raises: CheckpointError for one of another command."""
    facts = checkpoint.extra.get(FINETUNE)
    if facts is None:
        raise CheckpointError(f"{checkpoint.path}: a checkpoint of turret train; resume it with that")
    if not isinstance(facts, Mapping):
        raise CheckpointError(
            f"{checkpoint.path}: {FINETUNE} is {shown(facts)}; wanted an object; use another checkpoint"
        )
    return facts


def require_same_base(base: Base, resume: CheckpointContent, stored: Mapping[str, object]) -> None:
    """Raises: CheckpointError where the run was begun on another base."""
    was = stored.get("base_sha256")
    if was != base.fingerprint:
        packed = any(isinstance(module, PackedLinear) for module in base.model.modules())
        rounded = (
            "; weights are packed by the backend, and another one may round their scales otherwise" if packed else ""
        )
        raise CheckpointError(
            f"{resume.path}: tuned on a base with fingerprint {shown(was)[1:17]}..., and {base.opened.source} has "
            f"{base.fingerprint[:16]}...; give that base with BASE{rounded}"
        )
