"""Configurations and models of a family by its word."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import Any

from turret.nn import Init
from turret.spi import ConfigError

from .base import LanguageModel
from .config import from_values
from .decoder import Decoder, DecoderConfig
from .mini import Mini, MiniConfig

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


def build_model(config: DecoderConfig | MiniConfig, *, seed: int = 0, init: Init | None = None) -> LanguageModel:
    """A model with fresh weights on the current backend; `seed` decides the weights, the same on every backend.

    init: where parameters come from instead, such as `turret.nn.Blank()` for weights that are loaded.
    """
    if isinstance(config, DecoderConfig):
        return Decoder(config, seed=seed, init=init)
    return Mini(config, seed=seed, init=init)
