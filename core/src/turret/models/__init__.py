"""The two model families, and building one by its word."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import Any

from turret.spi import ConfigError

from .base import Cache as Cache
from .base import Checkpointing as Checkpointing
from .base import LanguageModel as LanguageModel
from .base import check_memory as check_memory
from .config import from_values
from .decoder import Decoder as Decoder
from .decoder import DecoderConfig as DecoderConfig
from .mini import Mini as Mini
from .mini import MiniConfig as MiniConfig

KINDS = ("decoder", "mini")


def model_config(kind: str, values: Mapping[str, Any]) -> DecoderConfig | MiniConfig:
    """The configuration of a family from plain values.

    Raises: ConfigError for an unknown family, key or value.
    """
    if kind == "decoder":
        return from_values(DecoderConfig, values)
    if kind == "mini":
        return from_values(MiniConfig, values)
    near = difflib.get_close_matches(kind, KINDS, n=1)
    hint = f"did you mean '{near[0]}'?" if near else f"known: {', '.join(KINDS)}"
    raise ConfigError(f"there is no model family '{kind}'; {hint}")


def build_model(config: DecoderConfig | MiniConfig, *, seed: int = 0) -> LanguageModel:
    """A model with fresh weights on the current backend; `seed` decides the weights, the same on every backend."""
    return Decoder(config, seed=seed) if isinstance(config, DecoderConfig) else Mini(config, seed=seed)
