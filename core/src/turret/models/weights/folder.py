"""Folders with config.json, safetensors and a tokenizer."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from turret.data.tokenizer_files import load_tokenizer
from turret.models.decoder import DecoderConfig
from turret.models.mini import MiniConfig
from turret.spi import CheckpointError, Unsupported

from .checkpoint import Checkpoint, Words, naming_the_way_out
from .config_json import read_config
from .facts import Facts
from .json_object import read_object
from .names import EMBEDDING, Piece, Plan, base_prefix, hugging_face, is_buffer
from .own_layout import MODEL_TYPE, own_plan, read_own
from .safetensors_file import SafetensorsFiles
from .source import TensorSource

STORED_HEAD = "lm_head.weight"
MOST_JSON = 16_000_000
"""Bytes of a configuration file; real ones have some thousand."""

OTHER_VOCABULARIES = ("tokenizer.model", "spiece.model", "vocab.json", "vocab.txt")


def open_folder(place: Path, *, tokenizer: bool, context: int | None = None) -> Checkpoint:
    """A folder in a Hugging Face layout or in turret's; the caller closes its source.

    context: the positions that will be used, where they are fewer. Raises: as `load_pretrained`.
    """
    values, where = read_object(place / "config.json", MOST_JSON), str(place / "config.json")
    own = values.get("model_type") == MODEL_TYPE
    described = read_own(values, where=where) if own else read_config(values, where=where, used=context)
    described = dataclasses.replace(described, eos_ids=described.eos_ids + _more_eos(place))
    config, words = described.config, _words(place) if tokenizer else (None, None)
    source = SafetensorsFiles(place)
    if own:
        return Checkpoint(source=source, described=described, form="safetensors", plan=own_plan, words=words)
    names = source.names()
    return Checkpoint(
        source=source,
        described=described,
        form="hf",
        plan=lambda _: _fitted(source, config),
        ignored=[each for each in names if is_buffer(config, each) or (config.tied_head and each == STORED_HEAD)],
        arrays=source.arrays() if described.packed else None,
        words=words,
    )


def has_packed_weights(place: Path) -> bool:
    """Whether the folder says that its weights have 4 bits already; False for what is no folder with a config.json.

    Raises: CheckpointError for one that cannot be read.
    """
    path = place / "config.json"
    return os.path.lexists(path) and "quantization_config" in read_object(path, MOST_JSON)


def _fitted(source: TensorSource, config: DecoderConfig | MiniConfig) -> Plan:
    """The plan with names as this checkpoint has them: with the body's prefix or without, a tied head under either."""
    names, prefix, plan = frozenset(source.names()), base_prefix(config), hugging_face(config)
    if not any(name.startswith(prefix) for name in names):
        bare: Sequence[tuple[str, Piece]] = list(plan.items())
        plan = {name: dataclasses.replace(piece, stored=piece.stored.removeprefix(prefix)) for name, piece in bare}
    if not config.tied_head and STORED_HEAD not in names:
        raise CheckpointError(
            f"{source.path}: there is no tensor {STORED_HEAD!r}, and tie_word_embeddings is false or absent; wanted "
            f"the head, or a configuration that ties it"
        )
    if config.tied_head and STORED_HEAD in names:
        stored = plan[EMBEDDING].stored
        if stored not in names:
            return plan | {EMBEDDING: Piece(STORED_HEAD)}
        _require_equal(source, stored)
    return plan


def _require_equal(source: TensorSource, embedding: str) -> None:
    """Raises: CheckpointError for a head that is said to be the embedding and is not."""
    same = source.shape(STORED_HEAD) == source.shape(embedding)
    if not same or not np.array_equal(source.read(STORED_HEAD), source.read(embedding)):
        raise CheckpointError(
            f"{source.path}: the head is tied, and {STORED_HEAD!r} differs from {embedding!r}; wanted equal values, or "
            f"tie_word_embeddings false"
        )


def _more_eos(place: Path) -> tuple[int, ...]:
    path = place / "generation_config.json"
    return Facts(read_object(path, MOST_JSON), str(path)).ids("eos_token_id") if os.path.lexists(path) else ()


def _words(place: Path) -> Words:
    if os.path.lexists(place / "tokenizer.json"):
        with naming_the_way_out(place):
            return load_tokenizer(place)
    for name in OTHER_VOCABULARIES:
        if os.path.lexists(place / name):
            raise Unsupported(
                f"{place}: holds {name} and no tokenizer.json; convert it with transformers, or load with "
                f"tokenizer=False"
            )
    return None, None
