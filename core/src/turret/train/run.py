"""A training run in a folder: from corpus to checkpoint, new or resumed."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from turret.data import DataPosition, Manifest, open_corpus
from turret.data.builtin import HASH_FILE, TEXT_FILE
from turret.models import LanguageModel
from turret.registry import OpenBackend
from turret.spi import CheckpointError, ConfigError, DataError

from .assembly import LOSS_SCALE, assembled
from .checkpoint import CheckpointContent, CheckpointStore
from .config import RunConfig
from .engine import Clock, metrics_of
from .interrupt import Interrupt, watch_signals
from .lock import LOCK, hold
from .metrics import MetricsLog, StepMetrics
from .precision import compute_format
from .room import require_few_pages, require_room
from .telemetry import Broadcast, CheckpointSaved, Evaluation, Observer, TrainDone, TrainStart

METRICS = "metrics.jsonl"
LOSS_CURVE = "loss.png"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunResult:
    """How a run ended and what it left.

    prompt: the beginning of a text that the model was not trained on (of the training text where nothing was kept for
    validation), half a context long.
    """

    done: TrainDone
    model: LanguageModel
    config: RunConfig
    backend: OpenBackend
    checkpoint: Path
    prompt: str


def require_fresh(out: Path) -> None:
    """Raises: ConfigError unless `out` is absent, an empty folder, or one that a run left before its first step."""
    try:
        if out.is_dir():
            found = {entry.name for entry in out.iterdir()} - {LOCK}
            if not found or found == {TEXT_FILE, HASH_FILE}:
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
    _require_room(config)
    compute_format(config.precision, backend, resumed=resume is not None)
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"{out}: the run folder cannot be made ({error}); choose another --out") from error
    with hold(out), watch_signals() as interrupt:
        run = _Run(config.resolved(), out, backend, resume, Broadcast(observers))
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
        backend: OpenBackend,
        resume: CheckpointContent | None,
        observer: Broadcast,
    ) -> None:
        self.config, self.out, self.backend, self.observer = config, out, backend, observer
        self.resumed_from = None if resume is None else resume.path
        self.start = 0 if resume is None else resume.step
        if self.start > config.steps:
            raise ConfigError(
                f"the checkpoint is at step {self.start}, past --steps {config.steps}; ask for more steps"
            )
        self.corpus = open_corpus(config.corpus, keep_in=out)
        self.provenance = Manifest.of(self.corpus)
        if resume is not None:
            Manifest.from_dict(resume.data).require_same(self.provenance)
            _require_position(config, resume)
        self.engine = assembled(config, self.corpus, backend, resume)
        self.store = CheckpointStore(out, keep=config.keep)
        if self.start in self.store.steps():
            self.store.rewind(self.start)
        self.log = MetricsLog.resume(out / METRICS, self.start)
        self.last_val: float | None = None if self.log.last is None else self.log.last.val_loss
        self.checkpoint: Path | None = self.resumed_from

    def train(self, interrupt: Interrupt) -> RunResult:
        """Steps, measurements and checkpoints up to `config.steps`, or until a signal came; the last step is saved."""
        config, clock = self.config, Clock(self.log.seconds)
        self.observer.on_start(self._begun())
        number = self.start
        while number < config.steps and interrupt.signal is None:
            number += 1
            self._step(number, clock, last=number == config.steps)
            if number % config.checkpoint_every == 0 and number != config.steps:
                self._save(number)
        if number != self.start or self.checkpoint is None:
            self._save(number)
        finished = number == config.steps
        reason = "finished" if finished or interrupt.signal is None else interrupt.signal.name
        return self._done(number, reason, clock)

    def _begun(self) -> TrainStart:
        return TrainStart(
            run=str(self.out),
            model=self.config.model,
            parameters=self.engine.model.parameter_count(),
            backend=self.backend.name,
            device=self.backend.tools.storage.device().name,
            steps=self.config.steps,
            start_step=self.start,
            tokens_seen=self.start * self.config.tokens_per_step,
            resumed_from=None if self.resumed_from is None else str(self.resumed_from),
        )

    def _step(self, number: int, clock: Clock, *, last: bool) -> None:
        result = self.engine.step(number)
        evaluation = self._evaluate(number) if last or number % self.config.eval_every == 0 else None
        record = metrics_of(
            number,
            result,
            tokens_per_step=self.config.tokens_per_step,
            seconds=clock.total,
            val_loss=None if evaluation is None else evaluation.val_loss,
        )
        self.log.append(record)
        self.observer.on_step(record)
        if evaluation is not None:
            self.observer.on_eval(evaluation)

    def _evaluate(self, number: int) -> Evaluation | None:
        if not self.engine.validation:
            return None
        began = time.monotonic()
        self.last_val = self.engine.evaluate()
        return Evaluation(
            step=number,
            val_loss=self.last_val,
            batches=len(self.engine.validation),
            seconds=time.monotonic() - began,
        )

    def _save(self, number: int) -> None:
        began = time.monotonic()
        self.log.sync()
        model = self.engine.model
        position = _position(self.config, number)
        self.checkpoint = self.store.save(
            CheckpointContent(
                model={"kind": model.kind, "config": model.config_dict()},
                train=self.config.to_dict(),
                tokenizer=self.config.tokenizer.name,
                data=self.provenance.to_dict(),
                step=number,
                tokens_seen=position.tokens_seen,
                position=position.to_dict(),
                random={"generator": "philox", "seed": self.config.seed},
                extra={} if self.engine.scale is None else {LOSS_SCALE: self.engine.scale.state()},
                parameters=model.state_dict(),
                optimizer=self.engine.optimizer.state_dict(),
            )
        )
        event = CheckpointSaved(step=number, path=str(self.checkpoint), seconds=time.monotonic() - began)
        self.observer.on_checkpoint(event)

    def _done(self, number: int, reason: str, clock: Clock) -> RunResult:
        last: StepMetrics | None = self.log.last
        tokens = number * self.config.tokens_per_step
        here = (number - self.start) * self.config.tokens_per_step
        done = TrainDone(
            reason=reason,
            step=number,
            steps=self.config.steps,
            tokens_seen=tokens,
            train_loss=None if last is None else last.loss,
            val_loss=self.last_val,
            tokens_per_second=here / max(clock.here, 1e-9),
            seconds=clock.total,
            checkpoint=str(self.checkpoint),
            skipped_steps=0 if self.engine.scale is None else self.engine.scale.skipped,
        )
        self.observer.on_done(done)
        assert self.checkpoint is not None
        return RunResult(
            done=done,
            model=self.engine.model,
            config=self.config,
            backend=self.backend,
            checkpoint=self.checkpoint,
            prompt=self._prompt(),
        )

    def _prompt(self) -> str:
        """The most readable beginning of a window: tables and rulers make poor prompts."""
        batches = self.engine.validation or (self.engine.sampler.batch(0),)
        half = max(1, self.config.context // 2)
        texts = [self.config.tokenizer.decode(row[:half]) for row in batches[0].inputs]
        return max(texts, key=lambda text: sum(character.isalpha() for character in text))

    def close(self) -> None:
        self.log.close()
        self.corpus.close()


def _require_room(config: RunConfig) -> None:
    window = config.batch * config.context
    held = window * (config.accumulate + (config.eval_batches if config.val_fraction > 0 else 0))
    saving = config.activation_checkpointing != "none" or config.precision != "float32"
    model = config.model_config()
    require_room(model, tokens=window, held=held, copies=4, saving=saving)
    if config.optimizer_page is not None:
        require_few_pages(model, config.optimizer_page)


def _position(config: RunConfig, step: int) -> DataPosition:
    return DataPosition.at(step, accumulate=config.accumulate, batch=config.batch, context=config.context)


def _require_position(config: RunConfig, resume: CheckpointContent) -> None:
    expected = _position(config, resume.step)
    try:
        saved = DataPosition.from_dict(resume.position)
    except DataError as error:
        raise CheckpointError(f"{resume.path}: {error}") from error
    if saved != expected:
        raise CheckpointError(
            f"{resume.path}: its data position is {saved}, that of step {resume.step} in this run is {expected}; "
            f"use another checkpoint"
        )
