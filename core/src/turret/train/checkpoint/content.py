"""What a checkpoint holds, and the rules that its facts keep on the way to disk and back."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from turret.spi import CheckpointError, Host

FACTS: dict[str, type] = {
    "model": dict,
    "train": dict,
    "tokenizer": str,
    "data": dict,
    "step": int,
    "tokens_seen": int,
    "position": dict,
    "random": dict,
    "extra": dict,
}
LARGEST_COUNT = 2**63 - 1
FINETUNE = "finetune"
"""Where the extra values say which base was tuned: only a base and this checkpoint together are a model."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class CheckpointContent:
    """Everything a stopped run needs to go on to the same losses.

    model: {"kind": str, "config": {...}}; train, data (the corpus and where it came from), random and extra: any
    JSON values; position: at least "step" and "tokens_seen", equal to the fields: the place in the data stream.
    parameters and optimizer: named host arrays. tokenizer_json: the tokenizer itself, where its name alone does not
    say what it is. path: where it was read from.
    Tuples come back from disk as lists.
    """

    model: Mapping[str, Any]
    train: Mapping[str, Any]
    tokenizer: str
    data: Mapping[str, Any]
    step: int
    tokens_seen: int
    position: Mapping[str, Any]
    random: Mapping[str, Any]
    extra: Mapping[str, Any] = field(default_factory=dict)
    parameters: Mapping[str, Host]
    optimizer: Mapping[str, Host]
    tokenizer_json: str | None = None
    path: Path | None = None

    def facts(self) -> dict[str, Any]:
        """The part that goes into the manifest, as plain JSON values. Raises: CheckpointError."""
        facts = {name: plain(getattr(self, name), name) for name in FACTS}
        check_facts(facts, "the checkpoint to write")
        return facts

    def require_shapes(self, wanted: Mapping[str, tuple[int, ...]]) -> None:
        """Compare parameter names and shapes with a model's. Raises: CheckpointError, naming the first difference."""
        where = self.path or "the checkpoint"
        advice = "build the model from the checkpoint's own config, or choose the checkpoint of this model"
        if missing := sorted(wanted.keys() - self.parameters.keys()):
            raise CheckpointError(f"{where}: no parameter {missing[0]!r} ({len(missing)} missing); {advice}")
        if foreign := sorted(self.parameters.keys() - wanted.keys()):
            raise CheckpointError(f"{where}: the model has no parameter {foreign[0]!r} ({len(foreign)} such); {advice}")
        for name, shape in wanted.items():
            if (got := self.parameters[name].shape) != shape:
                raise CheckpointError(f"{where}: parameter {name!r} is {got}, the model wants {shape}; {advice}")


def plain(value: object, where: str) -> Any:
    """A copy made of JSON types only. Raises: CheckpointError naming the place of anything else."""
    if value is None or isinstance(value, bool | str):
        return value
    if type(value) is int or (type(value) is float and math.isfinite(value)):
        return value
    if isinstance(value, list | tuple):
        return [plain(item, f"{where}[{index}]") for index, item in enumerate(value)]
    if isinstance(value, Mapping):
        for key in value:
            if not isinstance(key, str):
                raise CheckpointError(f"{where}: the key {key!r} is {type(key).__name__}; use text keys")
        return {key: plain(item, f"{where}.{key}") for key, item in value.items()}
    raise CheckpointError(
        f"{where}: {value!r} ({type(value).__name__}) has no JSON form; store None, bool, int, finite float, text, "
        "lists and mappings, and arrays under parameters or optimizer"
    )


def check_facts(facts: Mapping[str, Any], where: str) -> None:
    """Refuse facts of a wrong type and facts that contradict each other. Raises: CheckpointError."""
    for name, wanted in FACTS.items():
        if name not in facts:
            raise CheckpointError(f"{where}: {name!r} is missing; use another checkpoint")
        if type(facts[name]) is not wanted:
            raise CheckpointError(f"{where}: {name!r} is {type(facts[name]).__name__}, not {wanted.__name__}")
    for name in ("step", "tokens_seen"):
        if not 0 <= facts[name] <= LARGEST_COUNT:
            raise CheckpointError(f"{where}: {name} {facts[name]} is outside 0 ... 2**63 - 1")
    if type(facts["model"].get("kind")) is not str or type(facts["model"].get("config")) is not dict:
        raise CheckpointError(f"{where}: 'model' must hold a text 'kind' and a mapping 'config'")
    for name in ("step", "tokens_seen"):
        there = facts["position"].get(name)
        if type(there) is not int or there != facts[name]:
            raise CheckpointError(
                f"{where}: {name} is {facts[name]}, but {there!r:.80} in the data position; resuming would repeat or "
                "skip text, so resume from another checkpoint"
            )
