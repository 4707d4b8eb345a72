"""The model that a sub-command works with: the options that say how it is opened."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import click

from .options import NamedPath

if TYPE_CHECKING:
    from turret.data.chat_template import ChatTemplate
    from turret.data.subword import SubwordTokenizer
    from turret.train.opening import Opened

_OPTIONS = (
    click.option("--adapter", type=NamedPath(), help="Folder with an adapter of this model, in PEFT's files."),
    click.option("--quantize", type=click.Choice(["nf4"]), help="Pack linear weights into 4 bits while they load."),
    click.option("--context", type=int, help="Fewer positions than the model has, for a smaller cache."),
    click.option("--backend", default=None, help="Backend, as in cpu or cuda:1 [TURRET_BACKEND, or the best usable]"),
)


def model_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Adds --adapter, --quantize, --context and --backend, which `ModelChoice` takes by name."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelChoice:
    """A model as the command line names it."""

    model: Path
    adapter: Path | None
    quantize: Literal["nf4"] | None
    context: int | None
    backend: str | None

    def open(self) -> Opened:
        """Raises: as `open_model` and `open_backend`."""
        from turret.registry import open_backend
        from turret.train.opening import open_model

        backend = open_backend(self.backend)
        return open_model(self.model, backend, quantize=self.quantize, context=self.context, adapter=self.adapter)


def chat_parts(opened: Opened) -> tuple[SubwordTokenizer, ChatTemplate]:
    """What a conversation needs. Raises: ConfigError for a model without a chat template."""
    from turret.data.subword import SubwordTokenizer
    from turret.spi import ConfigError

    if opened.template is None or not isinstance(opened.tokenizer, SubwordTokenizer):
        raise ConfigError(
            f"{opened.source}: this model has no chat template; let it continue a text with: turret generate MODEL "
            f"--prompt TEXT"
        )
    return opened.tokenizer, opened.template
