"""What a finished fine-tuning run leaves for use: an adapter in PEFT's files, and a merged model."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import cast

from turret.data.subword import SubwordTokenizer
from turret.models import save_pretrained
from turret.models.weights.adapter_files import save_adapter
from turret.models.weights.pretrained import Form, Pretrained
from turret.spi import CheckpointError

from ..checkpoint import CheckpointContent, CheckpointStore
from ..opening import ADAPTER, MERGED
from .config import FinetuneConfig
from .tuned_base import Base

PlainContent = Callable[[], CheckpointContent]
"""The model alone as a checkpoint of `turret train` has it."""


def write_outputs(config: FinetuneConfig, out: Path, base: Base, plain: PlainContent) -> dict[str, str]:
    """Writes the adapter and the merged model, as `config.output` wants, and returns their folders by kind.

    The merged model comes in the layout of its base: a published one in its own, a checkpoint of turret in turret's
    (where its tokenizer is of bytes, which no file holds, as a run folder with one checkpoint). Merging changes the
    model: it has no adapters then, and packed layers that had one are float32. What an earlier end of this run left is
    replaced.
    Raises: CheckpointError, NonFiniteError, Unsupported.
    """
    _clear(out)
    written = {}
    if base.adapters is not None and config.output != "merged":
        save_adapter(out / ADAPTER, base.model, base.adapters, base=str(Path(config.base).resolve()))
        written[ADAPTER] = str(out / ADAPTER)
    if config.output != "adapter":
        if base.adapters is not None:
            base.adapters.merge()
        _write_merged(out / MERGED, base, plain)
        written[MERGED] = str(out / MERGED)
    return written


def _write_merged(merged: Path, base: Base, plain: PlainContent) -> None:
    opened = base.opened
    if not isinstance(opened.tokenizer, SubwordTokenizer):
        CheckpointStore(merged).save(plain())
        return
    own = opened.form in ("checkpoint", "safetensors")
    model = Pretrained(
        model=base.model,
        tokenizer=opened.tokenizer,
        template=opened.template,
        eos_ids=opened.eos_ids,
        source=opened.source,
        form="safetensors" if own else cast(Form, opened.form),
        architecture=opened.architecture,
    )
    save_pretrained(model, merged, form="safetensors" if own else "hf")


def _clear(out: Path) -> None:
    """Old outputs go before new ones come: a run that wants fewer of them must not leave those of another step."""
    for each in (out / ADAPTER, out / MERGED, *out.glob(".saving-*")):
        try:
            if each.is_dir():
                shutil.rmtree(each)
        except OSError as error:
            raise CheckpointError(f"{each}: of an earlier end, cannot be removed ({error}); remove it") from error
