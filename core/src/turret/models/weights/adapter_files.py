"""Adapters in the files of PEFT: adapter_model.safetensors and adapter_config.json in one directory."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from turret.files import scratch_folder, sync_folder, write_file
from turret.models.base import LanguageModel
from turret.nn import AdapterSet, Blank, LowRankAdapter, base_fingerprint
from turret.nn.adapter import Adaptable
from turret.nn.packing import named_layers
from turret.quant.array_files import open_arrays, write_arrays
from turret.spi import CheckpointError, ConfigError, Host, NonFiniteError, Unsupported

from .adapter_config import AdapterConfig, config_text, read_config
from .adapter_layout import Pair, grouped, joined, module_names, parted
from .json_object import parse_object
from .safetensors_file import SafetensorsFiles

ARRAYS, CONFIG = "adapter_model.safetensors", "adapter_config.json"
PREFIX, A, B = "base_model.model.", ".lora_A.weight", ".lora_B.weight"
BASE, RANKS = "turret_base_sha256", "turret_ranks"
"""What the metadata says beside the arrays: `base_fingerprint`, and for modules that are several layers their ranks."""


def save_adapter(
    directory: Path | str,
    model: LanguageModel,
    adapters: AdapterSet,
    *,
    names: Mapping[str, str] | None = None,
    base: str | None = None,
) -> None:
    """Writes the adapters of `model` for PEFT; `load_adapter` gives the same ones, bit for bit.

    names: what the checkpoint calls each linear layer (default: what transformers does). base: its path or name. The
    fingerprint of the base is stored too. GPT-2 has one module for queries, keys and values: its rank is the sum of
    theirs, unless all three share a. An adapter that was there is replaced; one whose writing is cut short in the
    moment of that is not loaded.
    Raises: ConfigError for adapters of another model and layers without a name; NonFiniteError; Unsupported where
    layers of one module have unlike scales; CheckpointError if the files cannot be written.
    """
    if adapters.model is not model:
        raise ConfigError("these adapters were attached to another model; save them with their own")
    known = module_names(model) if names is None else dict(names)
    if missing := sorted(adapters.keys() - known.keys()):
        raise ConfigError(f"layer {missing[0]:.80} has no name in the checkpoint; give names= for all layers")
    for name, parameter in adapters.named_parameters():
        if not np.isfinite(parameter.numpy()).all():
            raise NonFiniteError(f"{name} has NaN or infinite values; it is not saved")
    pairs, ranks = _joined(model, adapters, known)
    config = _config(pairs, adapters, known)
    metadata = {"format": "pt", BASE: base_fingerprint(model)} | ({RANKS: json.dumps(ranks)} if ranks else {})
    transposed = any(module.startswith("transformer.h.") for module in pairs)
    text = config_text(config, base=base, transposed=transposed)
    _write(Path(directory), _arrays(pairs), metadata, text)


def load_adapter(
    directory: Path | str,
    model: LanguageModel,
    *,
    names: Mapping[str, str] | None = None,
    any_base: bool = False,
) -> AdapterSet:
    """Attaches the adapters that PEFT or `save_adapter` wrote; names: as there.

    A file of turret fits one base alone, by its fingerprint; any_base=True takes it for any of the same shapes. Files
    of PEFT say nothing of their base.
    Raises: CheckpointError for what is missing, malformed or does not fit the model; Unsupported for what turret does
    not have, by name; ConfigError for another base, and as `AdapterSet`. The model is unchanged then.
    """
    folder = Path(directory)
    config = read_config(folder / CONFIG)
    groups = grouped(module_names(model) if names is None else names)
    layers = dict(named_layers(model, Adaptable))
    with SafetensorsFiles(folder / ARRAYS) as file, open_arrays(folder / ARRAYS) as raw:
        metadata = raw.metadata
        modules = _modules(file)
        for module in modules:
            if module not in groups or any(name not in layers for name in groups[module]):
                raise CheckpointError(f"{file.path}: {module!r:.80} is no linear layer of this {model.kind}")
        config.require_targets(folder / CONFIG, modules)
        ranks = _stored_ranks(file.path, metadata, modules)
        found: dict[str, Pair] = {}
        for module in modules:
            outputs = [layers[name].shape[0] for name in groups[module]]
            pair = _pair(file, module, config, layers[groups[module][0]].shape[1], sum(outputs))
            parts = parted(f"{file.path}: {module}", pair, outputs, ranks.get(module, []))
            found |= {name: part for name, part in zip(groups[module], parts, strict=True) if part is not None}
    if not any_base and BASE in metadata and metadata[BASE] != (own := base_fingerprint(model)):
        raise ConfigError(
            f"{folder}: the adapter was trained on a base with fingerprint {metadata[BASE]!r:.20} and this one has "
            f"{own[:16]}...; load that base, packed or not as it was, or pass any_base=True"
        )
    made = {name: _adapter(layer, found[name], config.dropout) for name, layer in layers.items() if name in found}
    targets = dict.fromkeys(name.rpartition(".")[2] for name in made)
    return AdapterSet(model, made, rank=config.rank, alpha=config.alpha, targets=tuple(targets), dropout=config.dropout)


def _joined(
    model: LanguageModel, adapters: AdapterSet, known: Mapping[str, str]
) -> tuple[dict[str, Pair], dict[str, list[int]]]:
    """The adapter of each module, and the ranks of those that are several layers."""
    layers, pairs, ranks = dict(named_layers(model, Adaptable)), {}, {}
    for module, members in grouped(known).items():
        if any(name in adapters for name in members):
            outputs = [layers[name].shape[0] for name in members]
            pairs[module], own = joined(module, {name: adapters.get(name) for name in members}, outputs)
            if len(own) > 1:
                ranks[module] = own
    return pairs, ranks


def _config(pairs: Mapping[str, Pair], adapters: AdapterSet, known: Mapping[str, str]) -> AdapterConfig:
    """The commonest rank and alpha for all, patterns for the rest; targets by their last word where that says it."""
    ((rank, alpha), _), *_ = Counter((pair.rank, pair.alpha) for pair in pairs.values()).most_common(1)
    others = [module for module in dict.fromkeys(known.values()) if module not in pairs]
    partial = {module.rpartition(".")[2] for module in others}
    targets = [module if (last := module.rpartition(".")[2]) in partial else last for module in pairs]
    return AdapterConfig(
        rank=rank,
        alpha=alpha,
        dropout=adapters.dropout,
        targets=tuple(dict.fromkeys(targets)),
        rank_pattern={module: pair.rank for module, pair in pairs.items() if pair.rank != rank},
        alpha_pattern={module: pair.alpha for module, pair in pairs.items() if pair.alpha != alpha},
    )


def _arrays(pairs: Mapping[str, Pair]) -> dict[str, Host]:
    arrays = {f"{PREFIX}{module}{A}": pair.a for module, pair in pairs.items()}
    arrays |= {f"{PREFIX}{module}{B}": np.ascontiguousarray(pair.b) for module, pair in pairs.items()}
    return arrays


def _write(folder: Path, arrays: Mapping[str, Host], metadata: Mapping[str, str], text: str) -> None:
    """Both files, first beside their places; the configuration, without which nothing is loaded, is the last."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with scratch_folder(folder) as beside:
            write_arrays(beside / ARRAYS, arrays, metadata)
            write_file(beside / CONFIG, text.encode("utf-8"))
            (folder / CONFIG).unlink(missing_ok=True)
            (beside / ARRAYS).replace(folder / ARRAYS)
            (beside / CONFIG).replace(folder / CONFIG)
        sync_folder(folder)
    except (OSError, ValueError) as error:  # ValueError: a NUL in the path
        raise CheckpointError(f"{folder}: the adapter could not be written ({error}); mend that first") from error


def _modules(file: SafetensorsFiles) -> list[str]:
    """The modules of a file whose names are pairs of A and B. Raises: Unsupported for others, CheckpointError."""
    stored = set(file.names())
    for name in file.names():
        end = next((end for end in (A, B) if name.endswith(end)), None)
        if end is None or not name.startswith(PREFIX):
            raise Unsupported(
                f"{file.path}: tensor {name!r:.80}; wanted {PREFIX}...{A} and ...{B} alone: save the adapter without "
                f"weights of the base (save_embedding_layers=False in PEFT)"
            )
        other = name.removesuffix(end) + (B if end == A else A)
        if other not in stored:
            raise CheckpointError(f"{file.path}: tensor {name!r:.80} lacks {other!r:.80}; fetch the adapter again")
    if not stored:
        raise CheckpointError(f"{file.path}: holds no tensors; wanted those of an adapter")
    return [name.removeprefix(PREFIX).removesuffix(A) for name in file.names() if name.endswith(A)]


def _pair(file: SafetensorsFiles, module: str, config: AdapterConfig, inputs: int, outputs: int) -> Pair:
    rank = config.rank_of(module)
    read = []
    for end, wanted in ((A, (rank, inputs)), (B, (outputs, rank))):
        name = f"{PREFIX}{module}{end}"
        if file.shape(name) != wanted:
            raise CheckpointError(f"{file.path}: {name:.120} has shape {file.shape(name)}; wanted {wanted}")
        array = file.read(name)
        if not np.isfinite(array).all():
            raise CheckpointError(f"{file.path}: {name:.120} has NaN or infinite values; fetch the adapter again")
        read.append(array)
    return Pair(a=read[0], b=read[1], alpha=config.alpha_of(module))


def _stored_ranks(path: Path, metadata: Mapping[str, str], modules: list[str]) -> dict[str, list[int]]:
    if RANKS not in metadata:
        return {}
    ranks = parse_object(path, metadata[RANKS].encode())
    for module, each in ranks.items():
        if module not in modules or not isinstance(each, list) or not all(type(rank) is int for rank in each):
            raise CheckpointError(f"{path}: {RANKS} has {each!r:.80} for {module!r:.80}; wanted whole numbers")
    return ranks


def _adapter(layer: Adaptable, pair: Pair, dropout: float) -> LowRankAdapter:
    outputs, inputs = layer.shape
    made = LowRankAdapter(
        inputs, outputs, rank=pair.rank, alpha=pair.alpha, init=Blank(), dropout=dropout, backend=layer.backend
    )
    put = layer.backend.tools.storage.from_host
    made.a.replace(put(np.ascontiguousarray(pair.a)))
    made.b.replace(put(np.ascontiguousarray(pair.b)))
    return made
