"""`turret convert`: a model in another layout, an adapter merged into it."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import click

from .options import NamedPath

if TYPE_CHECKING:
    from turret.data import Tokenizer
    from turret.data.subword import SubwordTokenizer
    from turret.models import Pretrained
    from turret.train.opening import Opened


@click.command()
@click.argument("model", type=NamedPath())
@click.option("--to", "form", type=click.Choice(["hf", "safetensors"]), required=True, help="The layout to write.")
@click.option("--out", type=NamedPath(), required=True, help="Folder of the new model; must be new or empty.")
@click.option("--adapter", type=NamedPath(), help="Folder with an adapter of this model, which is merged into it.")
@click.option("--backend", default=None, help="Backend, as in cpu or cuda:1 [TURRET_BACKEND, or the best usable]")
def command(
    model: Path, form: Literal["hf", "safetensors"], out: Path, adapter: Path | None, backend: str | None
) -> None:
    """Write a model in another layout.

    MODEL is what `turret generate` takes. hf: the layout of transformers that fits the model; safetensors: turret's
    own, which every model of turret fits. Weights are written as float32, those of 4 bits too, and the tokenizer (bytes
    too) and chat template with them: turret reads the folder as it reads any model. stdout carries one JSON object.
    """
    from turret.models import save_pretrained
    from turret.models.weights.adapter_files import load_adapter
    from turret.registry import open_backend
    from turret.spi import Unsupported
    from turret.train.opening import open_model

    _require_new(out)
    opened = open_model(model, open_backend(backend))
    pretrained = _pretrained(opened)
    if adapter is not None:
        load_adapter(adapter, opened.model).merge()
    try:
        save_pretrained(pretrained, out, form=form)
    except Unsupported as error:
        raise Unsupported(f"{error} (here: --to safetensors)") from error
    described = {
        "out": str(out),
        "form": form,
        "from": opened.form,
        "architecture": json.loads((out / "config.json").read_text(encoding="utf-8")).get("model_type"),
        "parameters": opened.model.parameter_count(),
        "bytes": sum(each.stat().st_size for each in out.iterdir()),
        "adapter": None if adapter is None else str(adapter),
        "chat_template": opened.template is not None,
    }
    click.echo(json.dumps(described))


def _require_new(out: Path) -> None:
    """Before anything is loaded. Raises: ConfigError for what is there and not an empty folder."""
    from turret.spi import ConfigError

    try:
        taken = os.path.lexists(out) and not (out.is_dir() and not any(out.iterdir()))
    except OSError as error:
        raise ConfigError(f"{out}: cannot be looked at ({error}); choose another --out") from error
    if taken:
        raise ConfigError(f"{out} is there already and stays as it is; choose another --out")


def _pretrained(opened: Opened) -> Pretrained:
    """What is saved, with a tokenizer that a file can hold."""
    from turret.models import Pretrained
    from turret.models.weights.pretrained import Form

    forms: dict[str, Form] = {"hf": "hf", "gguf": "gguf"}
    return Pretrained(
        model=opened.model,
        tokenizer=_writable(opened.tokenizer),
        template=opened.template,
        eos_ids=opened.eos_ids,
        source=opened.source,
        form=forms.get(opened.form, "safetensors"),
        architecture=opened.architecture,
    )


def _writable(tokenizer: Tokenizer) -> SubwordTokenizer:
    from turret.data.byte_vocabulary import as_subwords
    from turret.data.subword import SubwordTokenizer
    from turret.data.tokenizers import ByteTokenizer, ReservedByteTokenizer
    from turret.spi import Unsupported

    if isinstance(tokenizer, ByteTokenizer | ReservedByteTokenizer):
        return as_subwords(tokenizer)
    if isinstance(tokenizer, SubwordTokenizer):
        return tokenizer
    raise Unsupported(f"the tokenizer {tokenizer.name!r:.80} has no tokenizer.json; wanted bytes or subwords")
