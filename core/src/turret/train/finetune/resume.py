"""What a call to finetune means: a new run, or which checkpoint to go on from with which configuration."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from turret.spi import CheckpointError, ConfigError

from ..checkpoint import CheckpointContent
from ..resume import Kind, Plan, plan_run
from .config import FinetuneConfig
from .tuned_base import tuned_facts


def plan(out: Path | None, resume: str | None, given: Mapping[str, Any]) -> Plan[FinetuneConfig]:
    """Decides from `--out`, `--resume` and the values given on the command line or in a file.

    Raises: ConfigError, CheckpointError.
    """
    return plan_run(Kind(command="finetune", fresh=_fresh, resumed=_resumed), out, resume, given)


def _fresh(given: Mapping[str, Any]) -> FinetuneConfig:
    for name, option in (("base", "BASE, the model to begin with"), ("data", "--data FILE.jsonl, the examples")):
        if name not in given:
            raise ConfigError(f"finetune needs {option}")
    return FinetuneConfig(**given)


def _resumed(checkpoint: CheckpointContent, given: Mapping[str, Any]) -> FinetuneConfig:
    tuned_facts(checkpoint)
    try:
        saved = FinetuneConfig.from_values(checkpoint.train, source=f"{checkpoint.path}")
    except ConfigError as error:
        raise CheckpointError(f"{checkpoint.path}: its configuration cannot be used: {error}") from error
    return saved.resumed(given)
