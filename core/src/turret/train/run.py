"""A training run in a folder: from corpus to checkpoint, new or resumed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from turret.data import DataPosition
from turret.data.builtin import HASH_FILE, TEXT_FILE
from turret.data.token_corpus import RECORD_FILE, TOKENS_FILE
from turret.models import LanguageModel
from turret.registry import OpenBackend
from turret.spi import CheckpointError, ConfigError, DataError

from .assembly import LOSS_SCALE, assembled
from .checkpoint import CheckpointContent
from .config import RunConfig
from .interrupt import Interrupt, watch_signals
from .lock import LOCK, hold
from .loop import METRICS as METRICS
from .loop import Course, Loop, require_inside
from .precision import compute_format
from .room import require_few_pages, require_room
from .telemetry import Broadcast, Observer, TrainDone
from .text import RunText, RunTokenizer, tokenizer_of

LOSS_CURVE = "loss.png"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunResult:
    """How a run ended and what it left.

    bytes_per_token: of the whole corpus; a loss divided by it is in nats per byte.
    prompt: the beginning of a text that the model was not trained on (of the training text where nothing was kept for
    validation), half a context long.
    """

    done: TrainDone
    model: LanguageModel
    config: RunConfig
    tokenizer: RunTokenizer
    bytes_per_token: float
    backend: OpenBackend
    checkpoint: Path
    prompt: str


def require_fresh(out: Path) -> None:
    """Raises: ConfigError unless `out` is absent, an empty folder, or one that a run left before its first step."""
    try:
        if out.is_dir():
            found = {entry.name for entry in out.iterdir()} - {LOCK}
            for kept in ({TEXT_FILE, HASH_FILE}, {TOKENS_FILE, RECORD_FILE}):
                found -= kept if found >= kept else set()
            if not found:
                return
        exists = out.exists()
    except OSError as error:
        raise ConfigError(f"{out}: the run folder cannot be looked at ({error.strerror}); choose another") from error
    if exists:
        what = "is not empty" if out.is_dir() else "is a file"
        raise ConfigError(f"{out} {what}; choose a new folder, or continue that run with --resume auto")


def run_training(
    config: RunConfig,
    out: Path,
    backend: OpenBackend,
    *,
    resume: CheckpointContent | None = None,
    observers: Sequence[Observer] = (),
) -> RunResult:
    """Trains into `out` up to `config.steps`, from scratch or from a checkpoint, on `backend`.

    SIGINT and SIGTERM finish the step in progress and save. Raises: DataError, ConfigError, NonFiniteError,
    CheckpointError; the last checkpoint is intact then.
    """
    tokenizer = tokenizer_of(config, resume)
    _require_room(config, tokenizer.vocabulary_size)
    compute_format(config.precision, backend, resumed=resume is not None)
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"{out}: the run folder cannot be made ({error}); choose another --out") from error
    with hold(out), watch_signals() as interrupt:
        run = _Run(config.resolved(), out, tokenizer, backend, resume, Broadcast(observers))
        try:
            return run.train(interrupt)
        finally:
            run.close()


class _Run:
    """The parts of one run, put together in the order in which they can fail."""

    def __init__(
        self,
        config: RunConfig,
        out: Path,
        tokenizer: RunTokenizer,
        backend: OpenBackend,
        resume: CheckpointContent | None,
        observer: Broadcast,
    ) -> None:
        self.config, self.backend = config, backend
        require_inside(0 if resume is None else resume.step, config.steps)
        self.text = RunText(config, tokenizer, out, resume)
        if resume is not None:
            require_position(_position(config, resume.step), resume)
        self.engine = assembled(config, self.text.source, tokenizer.vocabulary_size, backend, resume)
        course = Course(
            steps=config.steps,
            eval_every=config.eval_every,
            checkpoint_every=config.checkpoint_every,
            keep=config.keep,
            tokens_per_step=config.tokens_per_step,
        )
        self.loop = Loop(course, out, self.engine, backend, observer, content=self._content, resume=resume)

    def train(self, interrupt: Interrupt) -> RunResult:
        """Up to `config.steps`, or until a signal came."""
        done = self.loop.run(interrupt)
        assert self.loop.checkpoint is not None
        return RunResult(
            done=done,
            model=self.engine.model,
            config=self.config,
            tokenizer=self.text.tokenizer,
            bytes_per_token=self.text.bytes_per_token,
            backend=self.backend,
            checkpoint=self.loop.checkpoint,
            prompt=self._prompt(),
        )

    def _content(self, number: int) -> CheckpointContent:
        model = self.engine.model
        position = _position(self.config, number)
        scale = {} if self.engine.scale is None else {LOSS_SCALE: self.engine.scale.state()}
        return CheckpointContent(
            model={"kind": model.kind, "config": model.config_dict()},
            train=self.config.to_dict(),
            tokenizer=self.text.tokenizer.name,
            tokenizer_json=self.text.tokenizer_json,
            data=self.text.provenance.to_dict(),
            step=number,
            tokens_seen=position.tokens_seen,
            position=position.to_dict(),
            random={"generator": "philox", "seed": self.config.seed},
            extra=scale | self.text.facts(),
            parameters=model.state_dict(),
            optimizer=self.engine.optimizer.state_dict(),
        )

    def _prompt(self) -> str:
        """The most readable beginning of a window: tables and rulers make poor prompts."""
        batches = self.engine.validation or (self.engine.sampler.batch(0),)
        half = max(1, self.config.context // 2)
        texts = [self.text.tokenizer.decode(row[:half]) for row in batches[0].inputs]
        return max(texts, key=lambda text: sum(character.isalpha() for character in text))

    def close(self) -> None:
        self.loop.close()
        self.text.close()


def _require_room(config: RunConfig, vocabulary: int) -> None:
    window = config.batch * config.context
    held = window * (config.accumulate + (config.eval_batches if config.val_fraction > 0 else 0))
    saving = config.activation_checkpointing != "none" or config.precision != "float32"
    model = config.model_config(vocabulary)
    require_room(model, tokens=window, held=held, copies=4, saving=saving)
    if config.optimizer_page is not None:
        require_few_pages(model, config.optimizer_page)


def _position(config: RunConfig, step: int) -> DataPosition:
    return DataPosition.at(step, accumulate=config.accumulate, batch=config.batch, context=config.context)


def require_position(expected: DataPosition, resume: CheckpointContent) -> None:
    """Raises: CheckpointError where a checkpoint's place in the data is not the one its step has in this run."""
    try:
        saved = DataPosition.from_dict(resume.position)
    except DataError as error:
        raise CheckpointError(f"{resume.path}: {error}") from error
    if saved != expected:
        raise CheckpointError(
            f"{resume.path}: its data position is {saved}, that of step {resume.step} in this run is {expected}; "
            f"use another checkpoint"
        )
