"""adapter_config.json of PEFT: what of it is understood, and how it is written."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from turret.spi import CheckpointError, Unsupported

from .json_object import read_object

MOST_BYTES = 1 << 20
READ = frozenset(
    ("peft_type", "r", "lora_alpha", "lora_dropout", "target_modules", "bias", "init_lora_weights", "rank_pattern")
) | {"alpha_pattern"}
WITHOUT_MEANING = frozenset(
    ("auto_mapping", "base_model_name_or_path", "revision", "peft_version", "inference_mode", "task_type")
) | {"exclude_modules", "fan_in_fan_out", "megatron_core", "qalora_group_size"}
"""What does not change the function that the arrays of the file say."""
_LITERAL = re.compile(r"[\w.]{1,256}", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class AdapterConfig:
    """Numbers of the adapters of a file. The patterns give those of modules, by name or the end of one after a dot."""

    rank: int
    alpha: float
    dropout: float
    targets: tuple[str, ...]
    rank_pattern: Mapping[str, int]
    alpha_pattern: Mapping[str, float]

    def rank_of(self, module: str) -> int:
        return next((rank for key, rank in self.rank_pattern.items() if key in _ends(module)), self.rank)

    def alpha_of(self, module: str) -> float:
        return next((alpha for key, alpha in self.alpha_pattern.items() if key in _ends(module)), self.alpha)

    def require_targets(self, where: Path, modules: Iterable[str]) -> None:
        """Raises: CheckpointError where listed targets and the modules of the file are not the same ones."""
        ends = {module: _ends(module) for module in modules}
        known, targets = set().union(*ends.values()), set(self.targets)
        for target in self.targets:
            if target not in known:
                raise CheckpointError(f"{where}: target module {target!r:.80} has no arrays; fetch the adapter again")
        for module, names in ends.items():
            if targets and targets.isdisjoint(names):
                raise CheckpointError(f"{where}: {module!r:.80} has arrays and is no target; fetch the adapter again")


def _ends(module: str) -> set[str]:
    """What PEFT may call a module: its name, or the end of it after a dot."""
    words = module.split(".")
    return {".".join(words[n:]) for n in range(len(words))}


def read_config(path: Path) -> AdapterConfig:
    """Raises: CheckpointError for what is malformed, Unsupported naming what turret does not have."""
    facts = read_object(path, MOST_BYTES)
    _require_supported(path, facts)
    targets = facts.get("target_modules")
    if isinstance(targets, str) or targets is None:  # an expression, or a word: the arrays say what it came to
        targets = []
    if not isinstance(targets, list) or not all(isinstance(each, str) for each in targets):
        raise CheckpointError(f"{path}: target_modules is {targets!r:.80}; wanted a list of names, or an expression")
    dropout = _number(path, "lora_dropout", facts.get("lora_dropout", 0.0))
    if not 0 <= dropout < 1:
        raise CheckpointError(f"{path}: lora_dropout is {dropout}; wanted at least 0 and below 1")
    return AdapterConfig(
        rank=_rank(path, "r", facts.get("r")),
        alpha=_alpha(path, "lora_alpha", facts.get("lora_alpha")),
        dropout=dropout,
        targets=tuple(targets),
        rank_pattern={key: _rank(path, key, each) for key, each in _pattern(path, "rank_pattern", facts)},
        alpha_pattern={key: _alpha(path, key, each) for key, each in _pattern(path, "alpha_pattern", facts)},
    )


def config_text(config: AdapterConfig, *, base: str | None, transposed: bool) -> str:
    """The JSON that PEFT reads. transposed: weights of the base are stored (inputs, outputs), as GPT-2 does it."""
    facts = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": base,
        "r": config.rank,
        "lora_alpha": _plain(config.alpha),
        "lora_dropout": config.dropout,
        "target_modules": list(config.targets),
        "rank_pattern": dict(config.rank_pattern),
        "alpha_pattern": {key: _plain(alpha) for key, alpha in config.alpha_pattern.items()},
        "bias": "none",
        "fan_in_fan_out": transposed,
        "inference_mode": True,
        "init_lora_weights": True,
        "modules_to_save": None,
        "use_dora": False,
        "use_rslora": False,
    }
    return json.dumps(facts, indent=2, sort_keys=True) + "\n"


def _require_supported(path: Path, facts: Mapping[str, Any]) -> None:
    if (kind := facts.get("peft_type")) != "LORA":
        raise Unsupported(f"{path}: peft_type is {kind!r:.40}; wanted 'LORA'")
    if (bias := facts.get("bias", "none")) != "none":
        raise Unsupported(f"{path}: bias is {bias!r:.40}; wanted 'none': turret trains no biases with adapters")
    init = facts.get("init_lora_weights", True)
    if init not in (True, False, "gaussian"):
        raise Unsupported(f"{path}: init_lora_weights is {init!r:.40}, which may change the base; wanted the default")
    for key, value in facts.items():
        if key not in READ and key not in WITHOUT_MEANING and value not in (None, False, [], {}, ""):
            raise Unsupported(f"{path}: {key:.80} is {value!r:.80}, which turret does not have; wanted it unset")


def _pattern(path: Path, key: str, facts: Mapping[str, Any]) -> list[tuple[str, Any]]:
    pattern = facts.get(key) or {}
    if not isinstance(pattern, dict):
        raise CheckpointError(f"{path}: {key} is {pattern!r:.80}; wanted an object")
    for name in pattern:
        if not _LITERAL.fullmatch(name):
            raise Unsupported(f"{path}: {key} has the expression {name!r:.80}; wanted names of modules, or their ends")
    return list(pattern.items())


def _rank(path: Path, key: str, value: Any) -> int:
    if type(value) is not int or value < 1:
        raise CheckpointError(f"{path}: the rank {key:.80} is {value!r:.40}; wanted a whole number of at least 1")
    return value


def _alpha(path: Path, key: str, value: Any) -> float:
    alpha = _number(path, key, value)
    if not alpha > 0:
        raise CheckpointError(f"{path}: the alpha {key:.80} is {alpha}; wanted a number above 0")
    return alpha


def _number(path: Path, key: str, value: Any) -> float:
    if type(value) not in (int, float) or abs(value) > 1e30 or not math.isfinite(value):
        raise CheckpointError(f"{path}: {key:.80} is {value!r:.40}; wanted a number")
    return float(value)


def _plain(number: float) -> int | float:
    return int(number) if number == int(number) else number
