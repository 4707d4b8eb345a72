"""A model from whatever a user has: a checkpoint or run folder of turret, a published folder, a GGUF file."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from turret.data import Tokenizer
from turret.data.chat_template import ChatTemplate
from turret.generate.stop import eos_of
from turret.models import LanguageModel, load_pretrained
from turret.models.weights.adapter_files import CONFIG as ADAPTER_CONFIG
from turret.models.weights.adapter_files import load_adapter
from turret.nn import pack_linears
from turret.registry import OpenBackend
from turret.spi import CheckpointError, ConfigError, ScaleCode

from .checkpoint.manifest import MANIFEST
from .checkpoint.names import FOLDER, step_of
from .load import load_model

MERGED = "merged"
"""The folder of a fine-tuning run that holds the tuned model as others read it."""
ADAPTER = "adapter"
"""The folder of a fine-tuning run that holds its adapter in PEFT's files."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Opened:
    """A model that can speak. eos_ids: tokens that end a generation; template: of conversations, where there is one.

    form: "checkpoint", "hf", "safetensors" or "gguf"; architecture: its family's name there.
    """

    model: LanguageModel
    tokenizer: Tokenizer
    template: ChatTemplate | None
    eos_ids: tuple[int, ...]
    source: Path
    form: str
    architecture: str


def open_model(
    path: Path,
    backend: OpenBackend,
    *,
    quantize: Literal["nf4"] | None = None,
    block: int = 64,
    scales: ScaleCode = "dynamic",
    context: int | None = None,
    adapter: Path | None = None,
) -> Opened:
    """The model at `path` with its tokenizer; quantize, block, scales and context as in `load_pretrained`.

    A run folder means its latest checkpoint, that of a fine-tuning run its merged model. adapter: a folder in PEFT's
    layout, whose adapters are attached.
    Raises: CheckpointError for what is no model or lacks a tokenizer, and as `load_pretrained` and `load_adapter`.
    """
    opened = _opened(path, backend, quantize, block, scales, context)
    if adapter is not None:
        load_adapter(adapter, opened.model)
    return opened


def _opened(
    path: Path,
    backend: OpenBackend,
    quantize: Literal["nf4"] | None,
    block: int,
    scales: ScaleCode,
    context: int | None,
) -> Opened:
    merged = path / MERGED
    if os.path.isfile(merged / "config.json") or os.path.isdir(merged / FOLDER):
        path = merged
    if is_checkpoint(path):
        if context is not None:
            raise ConfigError(f"{path}: context is fixed in a checkpoint of turret; leave it out")
        trained = load_model(path, backend)
        if quantize is not None:
            pack_linears(trained.model, block=block, scales=scales)
        return Opened(
            model=trained.model,
            tokenizer=trained.tokenizer,
            template=None,
            eos_ids=eos_of(trained.tokenizer),
            source=trained.path,
            form="checkpoint",
            architecture=trained.model.kind,
        )
    if os.path.isfile(path / ADAPTER_CONFIG):
        raise CheckpointError(f"{path}: an adapter without its base; give the base, and this folder as the adapter")
    found = load_pretrained(path, backend=backend, quantize=quantize, block=block, scales=scales, context=context)
    if found.tokenizer is None:
        raise CheckpointError(f"{path}: there is no tokenizer.json beside the weights; put the model's own there")
    return Opened(
        model=found.model,
        tokenizer=found.tokenizer,
        template=found.template,
        eos_ids=found.eos_ids,
        source=found.source,
        form=found.form,
        architecture=found.architecture,
    )


def is_checkpoint(path: Path) -> bool:
    """Whether `path` looks like a checkpoint or run folder of turret, good or damaged."""
    try:
        if not path.is_dir():
            return False
        if (path / "config.json").exists():
            return False
        return (path / MANIFEST).exists() or (path / FOLDER).is_dir() or step_of(path.name) is not None
    except (OSError, ValueError) as error:  # ValueError: a NUL in the path
        raise CheckpointError(f"{str(path)!r:.200}: cannot be read ({error}); check the path") from error
