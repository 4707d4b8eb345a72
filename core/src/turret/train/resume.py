"""What a call to train means: a new run, or which checkpoint to go on from with which configuration."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from turret.spi import CheckpointError, ConfigError

from .checkpoint import CheckpointContent, CheckpointStore, find_checkpoint, read_checkpoint
from .checkpoint.names import FOLDER
from .config import RunConfig
from .run import require_fresh

AUTO = "auto"


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A run that can start: where, with what, and from where. skipped: bad checkpoints passed over, with reasons."""

    out: Path
    config: RunConfig
    checkpoint: CheckpointContent | None = None
    skipped: tuple[tuple[Path, str], ...] = ()
    notice: str = ""


def plan(out: Path | None, resume: str | None, given: Mapping[str, Any]) -> Plan:
    """Decides from `--out`, `--resume` and the values given on the command line or in a file.

    Raises: ConfigError, CheckpointError.
    """
    if resume is None:
        if out is None:
            raise ConfigError("train needs --out DIR, the folder of the run; or --resume DIR to continue one")
        require_fresh(out)
        return Plan(out=out, config=RunConfig(**given))
    if not resume:
        raise ConfigError("--resume got an empty text; wanted a run or checkpoint folder, or auto")
    return _auto(out, given) if resume == AUTO else _from(Path(resume), out, given)


def _auto(out: Path | None, given: Mapping[str, Any]) -> Plan:
    if out is None:
        raise ConfigError("--resume auto looks in --out for the last good checkpoint; give --out DIR")
    if out.exists() and not out.is_dir():
        raise ConfigError(f"{out} is a file; wanted the folder of a run")
    found = CheckpointStore(out).latest_good()
    if found.checkpoint is not None:
        config = _saved(found.checkpoint).resumed(given)
        return Plan(out=out, config=config, checkpoint=found.checkpoint, skipped=found.skipped)
    if found.skipped:
        reasons = "; ".join(f"{path.name}: {reason}" for path, reason in found.skipped)
        raise CheckpointError(f"{out}: none of its checkpoints is good: {reasons}; start a new run in another folder")
    if out.is_dir() and not (out / FOLDER).exists() and not _looks_begun(out):
        require_fresh(out)
    return Plan(out=out, config=RunConfig(**given), notice=f"{out} has no checkpoint yet: starting from the beginning")


def _looks_begun(out: Path) -> bool:
    """A run that was killed before its first checkpoint leaves only files of ours."""
    ours = {".lock", "metrics.jsonl", "corpus.txt", "corpus.sha256", "corpus.txt.partial", "corpus.sha256.partial"}
    return all(entry.name in ours or entry.name.startswith(".metrics.jsonl") for entry in out.iterdir())


def _from(source: Path, out: Path | None, given: Mapping[str, Any]) -> Plan:
    checkpoint = read_checkpoint(find_checkpoint(source))
    assert checkpoint.path is not None
    home = checkpoint.path.parent.parent
    target = home if out is None else out
    if target.resolve() != home.resolve():
        require_fresh(target)
    return Plan(out=target, config=_saved(checkpoint).resumed(given), checkpoint=checkpoint)


def _saved(checkpoint: CheckpointContent) -> RunConfig:
    try:
        return RunConfig.from_values(checkpoint.train, source=f"{checkpoint.path}")
    except ConfigError as error:
        raise CheckpointError(f"{checkpoint.path}: its configuration cannot be used: {error}") from error
