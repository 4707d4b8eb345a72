"""Saving a model as a folder that `load_pretrained` reads, and transformers where the layout is its own."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from turret.data.chat_template import ChatTemplate
from turret.data.subword import SubwordTokenizer
from turret.files import scratch_folder, sync_file, sync_folder, write_file
from turret.models.base import LanguageModel
from turret.models.decoder import Decoder, DecoderConfig
from turret.models.mini import Mini, MiniConfig
from turret.nn import PackedLinear, require_no_adapters
from turret.nn.packing import parent_of
from turret.spi import CheckpointError, ConfigError, Host, Unsupported

from .config_json import read_config, write_config
from .names import Piece, Plan, hugging_face, join
from .own_layout import own_plan, read_own, write_own
from .pretrained import Pretrained
from .tensor_writer import Waiting, write_tensors

SaveForm = Literal["hf", "safetensors"]


def save_pretrained(
    model: LanguageModel | Pretrained,
    directory: Path | str,
    *,
    form: SaveForm = "hf",
    tokenizer: SubwordTokenizer | None = None,
    template: ChatTemplate | None = None,
    eos_ids: Sequence[int] = (),
) -> Path:
    """Writes config.json, model.safetensors in float32, the tokenizer and its chat template; returns the folder.

    form: "hf" takes the layout of transformers that fits the configuration (of several, the one that the model came
    in); "safetensors" takes turret's own, which holds every model under turret's names of parameters. Weights of 4 bits
    are written as the float32 they stand for. A `Pretrained` brings its own tokenizer, template and eos_ids.
    The folder is new, or was empty: it appears whole and flushed to the device, or not at all. One tensor at a time is
    on the host.
    Raises: Unsupported for a configuration that no layout has; ConfigError for an attached adapter and for arguments;
    NonFiniteError naming a tensor; CheckpointError for a folder with something in it, and what cannot be written.
    """
    if form not in ("hf", "safetensors"):
        raise ConfigError(f"form is {form!r:.40}; wanted 'hf' or 'safetensors'")
    architecture = None
    if isinstance(model, Pretrained):
        if tokenizer is not None or template is not None or eos_ids:
            raise ConfigError("a Pretrained brings its tokenizer, template and eos_ids; wanted none, or its .model")
        architecture, tokenizer, template = model.architecture, model.tokenizer, model.template
        eos_ids, model = model.eos_ids, model.model
    if not isinstance(model, (Decoder, Mini)):
        raise ConfigError(f"save_pretrained got {type(model).__name__}; wanted a Decoder, a Mini or a Pretrained")
    require_no_adapters(model)
    _require_vocabulary(model.vocabulary, tokenizer, eos_ids)
    texts = _texts(model.config, form, architecture, tokenizer, template, tuple(eos_ids))
    tensors = _tensors(model, own_plan(list(_names(model))) if form == "safetensors" else hugging_face(model.config))
    return _write(Path(directory), texts, tensors)


def _require_vocabulary(vocabulary: int, tokenizer: SubwordTokenizer | None, eos_ids: Sequence[int]) -> None:
    """Raises: ConfigError for ids that the model lacks."""
    if tokenizer is not None and tokenizer.vocabulary_size > vocabulary:
        raise ConfigError(
            f"the tokenizer has {tokenizer.vocabulary_size} ids and the model {vocabulary}; wanted no more: it is of "
            f"another model"
        )
    if not all(type(each) is int and 0 <= each < vocabulary for each in eos_ids):
        raise ConfigError(f"eos_ids are {tuple(eos_ids)!r:.80}; wanted ids below the vocabulary, {vocabulary}")


def _texts(
    config: DecoderConfig | MiniConfig,
    form: SaveForm,
    architecture: str | None,
    tokenizer: SubwordTokenizer | None,
    template: ChatTemplate | None,
    eos_ids: tuple[int, ...],
) -> dict[str, str]:
    """The small files by name."""
    values = write_own(config) if form == "safetensors" else write_config(config, architecture=architecture)
    _require_readable(values, form)
    eos: int | list[int] | None = eos_ids[0] if len(eos_ids) == 1 else list(eos_ids) or None
    # An absent key would be taken for the class's default.
    texts: dict[str, Any] = {"config.json": values | {"bos_token_id": None, "eos_token_id": eos}}
    if eos is not None:
        texts["generation_config.json"] = {"eos_token_id": eos}
    made = {name: json.dumps(value, indent=2) + "\n" for name, value in texts.items()}
    if tokenizer is None:
        if template is not None:
            raise ConfigError("a chat template without a tokenizer; wanted both, or neither")
        return made
    own: dict[str, Any] = {"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": config.context}
    own["clean_up_tokenization_spaces"] = False
    own |= {} if template is None else {**template.special, "chat_template": template.source}
    if tokenizer.eos_id is not None:
        own["eos_token"] = tokenizer.token_text(tokenizer.eos_id)
    return made | {"tokenizer.json": tokenizer.to_json(), "tokenizer_config.json": json.dumps(own, indent=2) + "\n"}


def _require_readable(values: Mapping[str, Any], form: SaveForm) -> None:
    """Raises: Unsupported for a configuration that would be refused when the folder is loaded."""
    try:
        (read_own if form == "safetensors" else read_config)(values, where="config.json")
    except CheckpointError as error:
        raise Unsupported(f"what is saved could not be loaded again: {error}; change the configuration") from error


def _names(model: Decoder | Mini) -> Iterator[str]:
    """Every parameter, packed weights among them."""
    for path, module in model.named_modules():
        prefix = f"{path}." if path else ""
        if isinstance(module, PackedLinear):
            yield f"{prefix}weight"
        yield from (prefix + name for name, _ in module.named_parameters() if "." not in name)


def _tensors(model: Decoder | Mini, plan: Plan) -> dict[str, Waiting]:
    together: dict[str, list[tuple[str, Piece]]] = {}
    for name, piece in plan.items():
        together.setdefault(piece.stored, []).append((name, piece))
    return {
        stored: (pieces[0][1].stored_shape(_shape(model, pieces[0][0])), _maker(model, pieces))
        for stored, pieces in together.items()
    }


def _maker(model: Decoder | Mini, pieces: list[tuple[str, Piece]]) -> Callable[[], Host]:
    return lambda: join([(piece, _value(model, name)) for name, piece in pieces])


def _owner(model: Decoder | Mini, name: str) -> tuple[Any, str]:
    path, _, last = name.rpartition(".")
    parent, child = parent_of(model, path)
    return getattr(parent, child), last


def _shape(model: Decoder | Mini, name: str) -> tuple[int, ...]:
    owner, last = _owner(model, name)
    return tuple(getattr(owner, last).shape)


def _value(model: Decoder | Mini, name: str) -> Host:
    owner, last = _owner(model, name)
    if isinstance(owner, PackedLinear) and last == "weight":
        return owner.weight.unpack().numpy()
    value: Host = getattr(owner, last).numpy()
    return value


def _write(target: Path, texts: dict[str, str], tensors: dict[str, Waiting]) -> Path:
    """Beside its place, flushed, then renamed."""
    try:
        if os.path.lexists(target) and not (target.is_dir() and not any(target.iterdir())):
            raise CheckpointError(f"{target} is there already and not empty; wanted a new folder: choose another name")
        target.parent.mkdir(parents=True, exist_ok=True)
        with scratch_folder(target.parent) as beside:
            folder = beside / "model"
            folder.mkdir()
            for name, text in texts.items():
                write_file(folder / name, text.encode("utf-8"))
            write_tensors(folder / "model.safetensors", tensors)
            sync_file(folder / "model.safetensors")
            sync_folder(folder)
            if target.is_dir():
                target.rmdir()  # it is empty, and not every system renames over it
            folder.rename(target)
        sync_folder(target.parent)
    except (OSError, ValueError) as error:  # ValueError: a NUL in the path
        raise CheckpointError(f"{target}: could not be written ({error}); mend that and save again") from error
    return target
