"""Loading a published model: its configuration, weights and tokenizer."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path
from typing import Literal

from turret.models.building import build_model
from turret.models.decoder import DecoderConfig
from turret.models.mini import MiniConfig
from turret.nn import Blank
from turret.registry import OpenBackend, open_backend, use_backend
from turret.spi import CheckpointError, ConfigError, ScaleCode

from .checkpoint import Checkpoint, open_gguf
from .fill import Packing, fill, parts_of, require_tensors
from .folder import open_folder
from .pretrained import Pretrained
from .room import require_room


def load_pretrained(
    path: Path | str,
    *,
    backend: str | OpenBackend | None = None,
    quantize: Literal["nf4"] | None = None,
    block: int = 64,
    scales: ScaleCode = "dynamic",
    context: int | None = None,
    tokenizer: bool = True,
) -> Pretrained:
    """A model in float32 from a GGUF file, or from a folder with config.json and safetensors.

    Folders are those of transformers (gpt2, llama, mistral, qwen2, qwen3), with 4-bit weights of bitsandbytes too, and
    those that `save_pretrained` writes. Tensors are converted and put on the backend one at a time: 4 bytes a parameter
    are needed there, and on the host the largest tensor beside them (twice for a tied head that is stored as well).

    quantize: "nf4" packs every linear weight as it comes, in blocks of `block` with such `scales`; they take about half
    a byte a value then, and embeddings and the head 4. context: fewer positions than the model has, for a smaller
    cache. tokenizer: false leaves the tokenizer and the chat template out.
    Raises: Unsupported naming what turret does not have; CheckpointError for a file that is malformed or whose parts do
    not fit; NonFiniteError naming a tensor; ConfigError for arguments and for a model that no memory here can hold;
    MissingExtra without a library of the extra `hub`.
    """
    if quantize not in (None, "nf4"):
        raise ConfigError(f"quantize is {quantize!r:.40}; wanted 'nf4' or None")
    place, opened = Path(path), open_backend(backend)
    if place.suffix == ".safetensors":
        raise CheckpointError(f"{place}: weights alone; give their folder, which has config.json too")
    if context is not None and (type(context) is not int or context < 1):
        raise ConfigError(f"context is {context!r:.40}; wanted a whole number of at least 1, which the model has")
    if os.path.isdir(place):
        checkpoint = open_folder(place, tokenizer=tokenizer, context=context)
    else:
        checkpoint = open_gguf(place, tokenizer=tokenizer)
    with checkpoint.source, use_backend(opened):
        return _loaded(checkpoint, None if quantize is None else (block, scales), context)


def _loaded(checkpoint: Checkpoint, packing: Packing | None, context: int | None) -> Pretrained:
    source, described, arrays = checkpoint.source, checkpoint.described, checkpoint.arrays
    if packing is not None and arrays is not None:
        raise ConfigError(f"{source.path}: its weights have 4 bits already; leave quantize out")
    config = described.config if context is None else _shortened(described.config, context)
    require_room(config, packed=packing is not None or arrays is not None)
    if config.blocks > (count := len(source.names())):
        raise CheckpointError(
            f"{source.path}: {config.blocks} blocks and {count} tensors; wanted several tensors for each block"
        )
    model = build_model(config, init=Blank())
    shapes = {name: parameter.shape for name, parameter in model.named_parameters()}
    plan = checkpoint.plan(list(shapes))
    bits = [each.stored for each in plan.values() if arrays is not None and parts_of(each.stored)[-1] in arrays]
    require_tensors(source, plan, shapes, ignored=checkpoint.ignored, packed=bits)
    fill(model, source, plan, packing=packing, arrays=arrays)
    tokenizer, template = checkpoint.words
    ids = described.eos_ids + (() if tokenizer is None or tokenizer.eos_id is None else (tokenizer.eos_id,))
    return Pretrained(
        model=model,
        tokenizer=tokenizer,
        template=template,
        # Small models made for tests carry ids of large ones; no model can produce an id that it lacks.
        eos_ids=tuple(dict.fromkeys(each for each in ids if 0 <= each < config.vocabulary)),
        source=source.path,
        form=checkpoint.form,
        architecture=described.architecture,
    )


def _shortened(config: DecoderConfig | MiniConfig, context: int) -> MiniConfig:
    if not isinstance(config, MiniConfig):
        raise ConfigError("context is fixed in a model with learned positions; leave it out")
    if context > config.context:
        raise ConfigError(f"context is {context!r:.40}; wanted 1 to {config.context}, which the model has")
    return dataclasses.replace(config, context=context)
