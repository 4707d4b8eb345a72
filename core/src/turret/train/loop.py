"""The course of a run in its folder: steps, measurements and checkpoints, whatever is learned from."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Generic

from turret.registry import OpenBackend
from turret.spi import ConfigError

from .checkpoint import CheckpointContent, CheckpointStore
from .engine import Clock, Engine, metrics_of
from .interrupt import Interrupt
from .metrics import MetricsLog, StepMetrics
from .objective import B
from .patience import Patience
from .telemetry import Broadcast, CheckpointSaved, Evaluation, TrainDone, TrainStart

METRICS = "metrics.jsonl"


@dataclass(frozen=True, slots=True, kw_only=True)
class Course:
    """How far a run goes and how often it stops to measure and to save; all but `tokens_per_step` in steps."""

    steps: int
    eval_every: int
    checkpoint_every: int
    keep: int
    tokens_per_step: int


class Loop(Generic[B]):
    """Takes an engine through a course, from where `resume` left it.

    content: the checkpoint of a step. parameters: of the model with packed weights, which it does not count itself.
    patience: ends the run early where validation gets no better; on_better is called where it does.
    Raises: ConfigError for a checkpoint past the course; DataError, CheckpointError.
    """

    def __init__(
        self,
        course: Course,
        out: Path,
        engine: Engine[B],
        backend: OpenBackend,
        observer: Broadcast,
        *,
        content: Callable[[int], CheckpointContent],
        parameters: int | None = None,
        resume: CheckpointContent | None,
        patience: Patience | None = None,
        on_better: Callable[[int], None] | None = None,
    ) -> None:
        self.course, self.out, self.engine, self.backend, self.observer = course, out, engine, backend, observer
        self.content, self.patience, self.on_better = content, patience, on_better
        self.parameters = engine.model.parameter_count() if parameters is None else parameters
        self.start = 0 if resume is None else resume.step
        self.checkpoint: Path | None = None if resume is None else resume.path
        self._resumed_from = self.checkpoint
        require_inside(self.start, course.steps)
        self.store = CheckpointStore(out, keep=course.keep)
        if self.start in self.store.steps():
            self.store.rewind(self.start)
        self.log = MetricsLog.resume(out / METRICS, self.start)
        self.last_val: float | None = None if self.log.last is None else self.log.last.val_loss

    def run(self, interrupt: Interrupt) -> TrainDone:
        """Up to the last step, until patience is at an end, or until a signal came; the last step is saved."""
        course, clock = self.course, Clock(self.log.seconds)
        self.observer.on_start(self._begun())
        number = self.start
        while number < course.steps and interrupt.signal is None and not self._exhausted:
            number += 1
            self._step(number, clock, last=number == course.steps)
            if number % course.checkpoint_every == 0 and number != course.steps and not self._exhausted:
                self._save(number)
        if number != self.start or self.checkpoint is None:
            self._save(number)
        return self._done(number, self._reason(number, interrupt), clock)

    def close(self) -> None:
        self.log.close()

    @property
    def _exhausted(self) -> bool:
        return self.patience is not None and self.patience.exhausted

    def _reason(self, number: int, interrupt: Interrupt) -> str:
        if number == self.course.steps:
            return "finished"
        if self._exhausted:
            return "no better validation loss"
        return "finished" if interrupt.signal is None else interrupt.signal.name

    def _begun(self) -> TrainStart:
        return TrainStart(
            run=str(self.out),
            model=self.engine.model.kind,
            parameters=self.parameters,
            backend=self.backend.name,
            device=self.backend.tools.storage.device().name,
            steps=self.course.steps,
            start_step=self.start,
            tokens_seen=self.start * self.course.tokens_per_step,
            resumed_from=None if self._resumed_from is None else str(self._resumed_from),
        )

    def _step(self, number: int, clock: Clock, *, last: bool) -> None:
        result = self.engine.step(number)
        evaluation = self._evaluate(number) if last or number % self.course.eval_every == 0 else None
        record = metrics_of(
            number,
            result,
            tokens_per_step=self.course.tokens_per_step,
            seconds=clock.total,
            val_loss=None if evaluation is None else evaluation.val_loss,
        )
        self.log.append(record)
        self.observer.on_step(record)
        if evaluation is not None:
            self.observer.on_eval(evaluation)
            better = self.patience is not None and self.patience.seen(number, evaluation.val_loss)
            if better and self.on_better is not None:
                self.on_better(number)

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
        self.checkpoint = self.store.save(self.content(number))
        event = CheckpointSaved(step=number, path=str(self.checkpoint), seconds=time.monotonic() - began)
        self.observer.on_checkpoint(event)

    def _done(self, number: int, reason: str, clock: Clock) -> TrainDone:
        last: StepMetrics | None = self.log.last
        here = (number - self.start) * self.course.tokens_per_step
        done = TrainDone(
            reason=reason,
            step=number,
            steps=self.course.steps,
            tokens_seen=number * self.course.tokens_per_step,
            train_loss=None if last is None else last.loss,
            val_loss=self.last_val,
            tokens_per_second=here / max(clock.here, 1e-9),
            seconds=clock.total,
            checkpoint=str(self.checkpoint),
            skipped_steps=0 if self.engine.scale is None else self.engine.scale.skipped,
        )
        self.observer.on_done(done)
        return done


def require_inside(start: int, steps: int) -> None:
    """Raises: ConfigError for a checkpoint past the last step."""
    if start > steps:
        raise ConfigError(f"the checkpoint is at step {start}, past --steps {steps}; ask for more steps")
