"""Folders in turret's own layout: any configuration, and parameters under the names that turret gives them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from turret.models.building import model_config
from turret.models.decoder import DecoderConfig
from turret.models.mini import MiniConfig
from turret.spi import CheckpointError, ConfigError

from .config_json import Described
from .facts import Facts
from .names import Piece, Plan
from .rope_json import require_theta

MODEL_TYPE = "turret"


def read_own(values: Mapping[str, Any], *, where: str) -> Described:
    """The model of a config.json in this layout. Raises: CheckpointError naming the file."""
    facts = Facts(values, where)
    kind, inside = facts.word("kind"), facts.part("config")
    for key, value in inside.values.items():
        if type(value) is int:
            inside.size(key)
    try:
        config = model_config(kind, inside.values)
    except ConfigError as error:
        raise CheckpointError(f"{where}: {error}") from error
    if isinstance(config, MiniConfig):
        require_theta(config.rope_theta, where)
    return Described(config=config, architecture=kind, eos_ids=facts.ids("eos_token_id"))


def write_own(config: DecoderConfig | MiniConfig) -> dict[str, Any]:
    """The config.json that `read_own` reads."""
    kind = "decoder" if isinstance(config, DecoderConfig) else "mini"
    return {"model_type": MODEL_TYPE, "kind": kind, "config": asdict(config)}


def own_plan(names: Sequence[str]) -> Plan:
    """Every parameter under its own name."""
    return {name: Piece(name) for name in names}
