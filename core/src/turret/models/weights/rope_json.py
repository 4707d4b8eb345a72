"""Rotary positions as config.json has them, read and written."""

from __future__ import annotations

from typing import Any

from turret.nn import RopeScaling
from turret.spi import CheckpointError, ConfigError

from .facts import Facts

SHARED = {"rope_type", "type", "rope_theta", "partial_rotary_factor"}
KEYS: dict[str, set[str]] = {
    "default": set(),
    "linear": {"factor"},
    "dynamic": {"factor", "original_max_position_embeddings"},
    "llama3": {"factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"},
    "yarn": {
        "factor",
        "original_max_position_embeddings",
        "attention_factor",
        "beta_fast",
        "beta_slow",
        "mscale",
        "mscale_all_dim",
        "truncate",
    },
}
"""The keys of each rope type; what else there may be would change the function unseen."""


def read_rope(facts: Facts, context: int) -> tuple[float, RopeScaling | None]:
    """(theta, scaling) from `rope_theta` with `rope_scaling`, or from `rope_parameters`, which has both.

    The dynamic type is plain up to `context` positions, beyond which no model of turret goes.
    Raises: Unsupported for another rope type or key; CheckpointError for what is malformed or contradicts itself.
    """
    old, new = facts.part("rope_scaling"), facts.part("rope_parameters")
    if old.values and new.values and _essence(old) != _essence(new):
        raise CheckpointError(f"{facts.where}: rope_scaling and rope_parameters differ; wanted one of them")
    rope = new if new.values else old
    theta = require_theta(rope.number("rope_theta", facts.number("rope_theta", 10_000.0)), facts.where)
    kind = rope.word("rope_type", rope.word("type", "default"))
    if kind not in KEYS:
        raise rope.unsupported(
            "rope_type" if rope.has("rope_type") else "type", f"wanted one of {', '.join(sorted(KEYS))}"
        )
    for key in rope.values:
        if key not in KEYS[kind] | SHARED and rope.has(key):
            raise rope.unsupported(key, f"wanted no such key for rope type {kind}")
    rope.refuse_unless({"partial_rotary_factor": (1,), "mscale": (), "mscale_all_dim": (), "truncate": (True,)})
    if kind in ("default", "dynamic"):
        return theta, None
    try:
        return theta, _scaling(kind, rope, _original(facts, rope, context), context)
    except ConfigError as error:
        raise CheckpointError(f"{rope.where}: {error}") from error


def _essence(rope: Facts) -> dict[str, Any]:
    """What two spellings of one scaling agree in."""
    values = {key: value for key, value in rope.values.items() if key not in ("type", "rope_theta") and rope.has(key)}
    return values | {"rope_type": rope.word("rope_type", rope.word("type", "default"))}


def _original(facts: Facts, rope: Facts, context: int) -> int:
    """The context before it was stretched, which some files say beside the scaling and some inside."""
    key = "original_max_position_embeddings"
    beside = facts.size(key, rope.size(key, context))
    if rope.size(key, beside) != beside:
        raise CheckpointError(f"{rope.where}: {key} is {rope.values[key]!r:.40} inside and {beside} outside")
    return beside


def require_theta(theta: float, where: str) -> float:
    """The theta itself. Raises: CheckpointError for one with which frequencies do not fall."""
    if theta <= 1:
        raise CheckpointError(f"{where}: rope theta is {theta}; wanted more than 1")
    return theta


def _scaling(kind: str, rope: Facts, original: int, context: int) -> RopeScaling:
    if kind == "linear":
        return RopeScaling(kind="linear", factor=rope.number("factor"))
    if kind == "llama3":
        return RopeScaling(
            kind="llama3",
            factor=rope.number("factor"),
            original_context=original,
            low=rope.number("low_freq_factor"),
            high=rope.number("high_freq_factor"),
        )
    return RopeScaling(
        kind="yarn",
        factor=rope.number("factor", context / original),
        original_context=original,
        fast=rope.number("beta_fast", 32.0),
        slow=rope.number("beta_slow", 1.0),
        attention=rope.number("attention_factor") if rope.has("attention_factor") else None,
    )


def write_rope(theta: float, scaling: RopeScaling | None) -> dict[str, Any]:
    """The keys of config.json that `read_rope` reads back, which old and new programs know."""
    theta = float(theta)
    if scaling is None:
        return {"rope_theta": theta, "rope_scaling": None}
    made: dict[str, Any] = {"rope_type": scaling.kind, "factor": float(scaling.factor)}
    if scaling.kind == "llama3":
        made |= {"low_freq_factor": float(scaling.low), "high_freq_factor": float(scaling.high)}
    if scaling.kind == "yarn":
        made |= {"beta_fast": float(scaling.fast), "beta_slow": float(scaling.slow)}
    if scaling.kind == "yarn" and scaling.attention is not None:
        made["attention_factor"] = float(scaling.attention)
    if scaling.kind != "linear":
        made["original_max_position_embeddings"] = scaling.original_context
    return {"rope_theta": theta, "rope_scaling": made}
