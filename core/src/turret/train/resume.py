"""What a call to train means: a new run, or which checkpoint to go on from with which configuration."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

from turret.data.builtin import HASH_FILE, TEXT_FILE
from turret.data.token_corpus import RECORD_FILE, TOKENS_FILE
from turret.files import partial
from turret.spi import CheckpointError, ConfigError

from .checkpoint import CheckpointContent, CheckpointStore, find_checkpoint, read_checkpoint
from .checkpoint.content import FINETUNE
from .checkpoint.names import FOLDER
from .config import RunConfig
from .lock import LOCK
from .loop import METRICS
from .run import require_fresh
from .text import require_same_tokenizer

AUTO = "auto"


C = TypeVar("C")


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan(Generic[C]):
    """A run that can start: where, with what, and from where. skipped: bad checkpoints passed over, with reasons."""

    out: Path
    config: C
    checkpoint: CheckpointContent | None = None
    skipped: tuple[tuple[Path, str], ...] = ()
    notice: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind(Generic[C]):
    """One command's runs. fresh: the configuration of a new run; resumed: that of a checkpoint, with what is new."""

    command: str
    fresh: Callable[[Mapping[str, Any]], C]
    resumed: Callable[[CheckpointContent, Mapping[str, Any]], C]


def plan(out: Path | None, resume: str | None, given: Mapping[str, Any]) -> Plan[RunConfig]:
    """Decides from `--out`, `--resume` and the values given on the command line or in a file.

    Raises: ConfigError, CheckpointError.
    """
    kind = Kind(command="train", fresh=lambda given: RunConfig(**given), resumed=_resumed)
    return plan_run(kind, out, resume, given)


def plan_run(kind: Kind[C], out: Path | None, resume: str | None, given: Mapping[str, Any]) -> Plan[C]:
    """`plan` for any kind of run."""
    if resume is None:
        if out is None:
            raise ConfigError(f"{kind.command} needs --out DIR, the folder of the run; or --resume DIR to continue one")
        require_fresh(out)
        return Plan(out=out, config=kind.fresh(given))
    if not resume:
        raise ConfigError("--resume got an empty text; wanted a run or checkpoint folder, or auto")
    return _auto(kind, out, given) if resume == AUTO else _from(kind, Path(resume), out, given)


def _auto(kind: Kind[C], out: Path | None, given: Mapping[str, Any]) -> Plan[C]:
    if out is None:
        raise ConfigError("--resume auto looks in --out for the last good checkpoint; give --out DIR")
    if out.exists() and not out.is_dir():
        raise ConfigError(f"{out} is a file; wanted the folder of a run")
    found = CheckpointStore(out).latest_good()
    if found.checkpoint is not None:
        config = kind.resumed(found.checkpoint, given)
        return Plan(out=out, config=config, checkpoint=found.checkpoint, skipped=found.skipped)
    if found.skipped:
        reasons = "; ".join(f"{path.name}: {reason}" for path, reason in found.skipped)
        raise CheckpointError(f"{out}: none of its checkpoints is good: {reasons}; start a new run in another folder")
    if out.is_dir() and not (out / FOLDER).exists() and not _looks_begun(out):
        require_fresh(out)
    return Plan(out=out, config=kind.fresh(given), notice=f"{out} has no checkpoint yet: starting from the beginning")


def _looks_begun(out: Path) -> bool:
    """A run that was killed before its first checkpoint leaves only files of ours."""
    written = (METRICS, TEXT_FILE, HASH_FILE, TOKENS_FILE, RECORD_FILE)
    ours = {LOCK, *written, *(partial(out / name).name for name in written)}
    return all(entry.name in ours for entry in out.iterdir())


def _from(kind: Kind[C], source: Path, out: Path | None, given: Mapping[str, Any]) -> Plan[C]:
    checkpoint = read_checkpoint(find_checkpoint(source))
    assert checkpoint.path is not None
    home = checkpoint.path.parent.parent
    target = home if out is None else out
    if target.resolve() != home.resolve():
        require_fresh(target)
    return Plan(out=target, config=kind.resumed(checkpoint, given), checkpoint=checkpoint)


def _resumed(checkpoint: CheckpointContent, given: Mapping[str, Any]) -> RunConfig:
    """The run's own configuration with what is given anew. A tokenizer is compared by content, wherever it lies now."""
    saved = _saved(checkpoint)
    if given.get("tokenizer_file") is not None:
        require_same_tokenizer(checkpoint, Path(given["tokenizer_file"]))
        given = {**given, "tokenizer_file": saved.tokenizer_file}
    return saved.resumed(given)


def _saved(checkpoint: CheckpointContent) -> RunConfig:
    if FINETUNE in checkpoint.extra:
        raise CheckpointError(f"{checkpoint.path}: a checkpoint of turret finetune; resume it with that")
    try:
        return RunConfig.from_values(checkpoint.train, source=f"{checkpoint.path}")
    except ConfigError as error:
        raise CheckpointError(f"{checkpoint.path}: its configuration cannot be used: {error}") from error
