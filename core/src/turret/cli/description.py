"""What a published model or an adapter says about itself, without a model being built."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from turret.data.gguf_vocabulary import chat_template_from_gguf, tokenizer_from_gguf
from turret.data.tokenizer_files import load_tokenizer
from turret.models import DecoderConfig, MiniConfig
from turret.models.weights.adapter_config import read_config
from turret.models.weights.adapter_files import ARRAYS, BASE, CONFIG, A
from turret.models.weights.checkpoint import Checkpoint, open_gguf
from turret.models.weights.fill import parts_of
from turret.models.weights.folder import MOST_JSON, open_folder
from turret.models.weights.gguf_file import GgufFile
from turret.models.weights.json_object import read_object
from turret.models.weights.mapped_file import FLOATS
from turret.models.weights.safetensors_file import SafetensorsFiles
from turret.models.weights.safetensors_header import ITEM_BYTES
from turret.models.weights.source import TensorSource
from turret.models.weights.tensor_writer import require_finite
from turret.quant.array_files import open_arrays
from turret.spi import CheckpointError, DataError, MissingExtra, Unsupported

FLOAT_KINDS = frozenset(FLOATS)


def describe_published(path: Path, *, verify: bool) -> dict[str, Any]:
    """A folder with config.json, or a GGUF file. verify: read every tensor, one at a time.

    Raises: as `load_pretrained` for what it could not load; NonFiniteError naming a tensor.
    """
    checkpoint = (open_folder if path.is_dir() else open_gguf)(path, tokenizer=False)
    with checkpoint.source as source:
        config, kinds = checkpoint.described.config, _kinds(source)
        described: dict[str, Any] = {
            "path": str(path),
            "form": checkpoint.form,
            "architecture": checkpoint.described.architecture,
            "model": "decoder" if isinstance(config, DecoderConfig) else "mini",
            "parameters": config.parameter_count(),
            "stored_parameters": _stored_parameters(checkpoint),
            "quantization": "nf4" if checkpoint.arrays is not None else _quantization(kinds),
            "bytes": sum(each["bytes"] for each in kinds.values()),
            "kinds": kinds,
            **config_facts(config),
            **_words(checkpoint),
            "config": asdict(config),
            "verified": verify,
        }
        if verify:
            described["tensors"] = _read_all(source)
        return described


def describe_adapter(path: Path, *, verify: bool) -> dict[str, Any]:
    """A folder with an adapter in PEFT's files. Raises: as `load_adapter` for files that it could not read."""
    config = read_config(path / CONFIG)
    facts = read_object(path / CONFIG, MOST_JSON)
    with SafetensorsFiles(path / ARRAYS) as source, open_arrays(path / ARRAYS) as arrays:
        kinds = _kinds(source)
        described: dict[str, Any] = {
            "path": str(path),
            "form": "adapter",
            "base": facts.get("base_model_name_or_path"),
            "base_sha256": arrays.metadata.get(BASE),
            "rank": config.rank,
            "alpha": config.alpha,
            "dropout": config.dropout,
            "targets": list(config.targets),
            "modules": sum(name.endswith(A) for name in source.names()),
            "parameters": sum(each["values"] for each in kinds.values()),
            "bytes": sum(each["bytes"] for each in kinds.values()),
            "kinds": kinds,
            "verified": verify,
        }
        if verify:
            described["tensors"] = _read_all(source)
        return described


def config_facts(config: DecoderConfig | MiniConfig) -> dict[str, Any]:
    """What every form of model is asked for, by one name for both families."""
    rope: dict[str, Any] | None = None
    if isinstance(config, MiniConfig):
        kv_heads, size, scaling = config.kv_heads, config.size_of_head, config.rope_scaling
        rope = {"theta": config.rope_theta, "scaling": None if scaling is None else asdict(scaling)}
    else:
        kv_heads, size = config.key_value_heads, config.width // config.heads
    return {
        "context": config.context,
        "vocabulary": config.vocabulary,
        "blocks": config.blocks,
        "width": config.width,
        "feed_forward": config.feed_forward,
        "heads": {"query": config.heads, "key_value": kv_heads, "size": size},
        "rope": rope,
        "tied_head": config.tied_head,
    }


def _stored_parameters(checkpoint: Checkpoint) -> int:
    """The parameters that the tensors are. Raises: CheckpointError for tensors that miss, or are of another model."""
    source, config = checkpoint.source, checkpoint.described.config
    names = source.names()
    if config.blocks > len(names):
        raise CheckpointError(f"{source.path}: {config.blocks} blocks and {len(names)} tensors; take the whole model")
    stored = dict.fromkeys(piece.stored for piece in checkpoint.plan(names).values())
    parts = {name: parts_of(name) for name in stored if parts_of(name)[-1] in names} if checkpoint.arrays else {}
    _require_same(source, stored, {*names} - {*checkpoint.ignored} - {part for each in parts.values() for part in each})
    count = sum(math.prod(source.shape(name)) * (2 if name in parts else 1) for name in stored)
    if count != (wanted := config.parameter_count()):
        raise CheckpointError(
            f"{source.path}: its configuration means {wanted} parameters and its tensors hold {count}; they are of two "
            f"models: take the whole one"
        )
    return count


def _require_same(source: TensorSource, wanted: Iterable[str], held: set[str]) -> None:
    wanted = dict.fromkeys(wanted)
    if missing := [name for name in wanted if name not in held]:
        raise CheckpointError(f"{source.path}: there is no tensor {missing[0]!r:.80}; take the whole model")
    if extra := sorted(held - wanted.keys()):
        raise CheckpointError(f"{source.path}: tensor {extra[0]!r:.80} has no place in this model; take another file")


def _kinds(source: TensorSource) -> dict[str, dict[str, int]]:
    """How many tensors, values and bytes are stored in which way, the most bytes first."""
    found: dict[str, dict[str, int]] = {}
    for name in source.names():
        kind, values = source.kind(name), math.prod(source.shape(name))
        block, size = _sizes(source, kind)
        entry = found.setdefault(kind, {"tensors": 0, "values": 0, "bytes": 0})
        for key, more in (("tensors", 1), ("values", values), ("bytes", values // block * size)):
            entry[key] += more
    return dict(sorted(found.items(), key=lambda item: -item[1]["bytes"]))


def _sizes(source: TensorSource, kind: str) -> tuple[int, int]:
    """Values of a block, and its bytes."""
    if not isinstance(source, GgufFile):
        return 1, ITEM_BYTES[kind]
    from gguf import GGML_QUANT_SIZES, GGMLQuantizationType

    block, size = GGML_QUANT_SIZES[GGMLQuantizationType[kind]]
    return int(block), int(size)


def _quantization(kinds: dict[str, dict[str, int]]) -> str | None:
    """The kind that most bytes are in, unless those are plain floats."""
    most = next(iter(kinds), None)
    return None if most in FLOAT_KINDS else most


def _words(checkpoint: Checkpoint) -> dict[str, Any]:
    """The tokenizer, the template and the ends; an unusable tokenizer is told, as the weights are readable without."""
    source, ids = checkpoint.source, checkpoint.described.eos_ids
    try:
        if isinstance(source, GgufFile):
            known = "tokenizer.ggml.model" in source.metadata
            tokenizer = tokenizer_from_gguf(source.metadata) if known else None
            template = chat_template_from_gguf(source.metadata) if known else None
        else:
            known = (source.path / "tokenizer.json").exists()
            tokenizer, template = load_tokenizer(source.path) if known else (None, None)
    except (DataError, Unsupported, MissingExtra) as error:
        return {"tokenizer": {"unusable": str(error)}, "chat_template": None, "eos": list(ids)}
    if tokenizer is None:
        return {"tokenizer": None, "chat_template": False, "eos": list(ids)}
    own = () if tokenizer.eos_id is None else (tokenizer.eos_id,)
    inside = dict.fromkeys(each for each in (*ids, *own) if 0 <= each < checkpoint.described.config.vocabulary)
    return {
        "tokenizer": {
            "kind": tokenizer.name,
            "vocabulary": tokenizer.vocabulary_size,
            "control_tokens": len(tokenizer.special_ids),
            "prefix": list(tokenizer.prefix),
            "sha256": tokenizer.fingerprint,
        },
        "chat_template": template is not None,
        "eos": {each: tokenizer.token_text(each) for each in inside},
    }


def _read_all(source: TensorSource) -> dict[str, list[int]]:
    """Shapes by name, after every number that is a float was looked at. Raises: NonFiniteError naming a tensor."""
    for name in source.names():
        if not isinstance(source, SafetensorsFiles) or source.kind(name) in FLOAT_KINDS:
            require_finite(source.read(name), f"{source.path}: tensor {name!r:.80}")
        else:
            source.raw(name)
    return {name: list(source.shape(name)) for name in source.names()}
