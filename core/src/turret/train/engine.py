"""The training loop: sample, forward, loss, backward, clip, update, publish."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from turret.data import Batch, BatchSampler
from turret.models import LanguageModel
from turret.optim import Adam, AdamStats, Schedule
from turret.spi import NonFiniteError
from turret.tensor import Gradients, Tensor, backward, no_grad, ops, tensor

from .metrics import StepMetrics


@dataclass(frozen=True, slots=True, kw_only=True)
class StepResult:
    """What one committed step measured, before it becomes a record."""

    loss: float
    learning_rate: float
    stats: AdamStats


class Engine:
    """Performs steps on a model: deterministic given model, optimizer state and step number.

    A step that meets a loss, gradient or update that is not finite raises NonFiniteError and changes nothing.
    """

    def __init__(
        self,
        model: LanguageModel,
        optimizer: Adam,
        sampler: BatchSampler,
        schedule: Schedule,
        *,
        accumulate: int = 1,
        validation: Sequence[Batch] = (),
    ) -> None:
        self.model, self.optimizer, self.sampler, self.schedule = model, optimizer, sampler, schedule
        self.accumulate, self.validation = accumulate, tuple(validation)
        self._backend = model.parameters()[0].backend

    def step(self, number: int) -> StepResult:
        """Step `number`, from 1: one update from `accumulate` batches, each weighted by its share of the tokens."""
        batches = [self.sampler.batch(number - 1, micro) for micro in range(self.accumulate)]
        tokens = sum(batch.targets.size for batch in batches)
        losses: list[tuple[float, Tensor]] = []
        total: Gradients | None = None
        for batch in batches:
            share = batch.targets.size / tokens
            loss = self._loss(batch)
            seed = None if share == 1.0 else tensor(share, dtype="float32", backend=self._backend)
            gradients = backward(loss, seed)
            total = gradients if total is None else total + gradients
            losses.append((share, loss))
        rate = self.schedule(number)
        try:
            stats = self.optimizer.step(total, lr=rate)
        except NonFiniteError as error:
            self._finite_loss(number, losses, error)
            raise
        return StepResult(loss=self._finite_loss(number, losses), learning_rate=rate, stats=stats)

    def evaluate(self) -> float:
        """Mean loss over the validation batches, nats per token. Raises: NonFiniteError."""
        total, tokens = 0.0, 0
        with no_grad():
            for batch in self.validation:
                total += float(self._loss(batch).item()) * batch.targets.size
                tokens += batch.targets.size
        loss = total / tokens
        if not math.isfinite(loss):
            raise NonFiniteError(f"the validation loss is {loss}; lower the learning rate, or check the data")
        return loss

    def _loss(self, batch: Batch) -> Tensor:
        ids, targets = (tensor(x, backend=self._backend) for x in batch)
        return ops.cross_entropy(self.model(ids), targets)

    @staticmethod
    def _finite_loss(number: int, losses: list[tuple[float, Tensor]], cause: Exception | None = None) -> float:
        loss = float(np.sum([share * float(value.item()) for share, value in losses]))
        if not math.isfinite(loss):
            raise NonFiniteError(
                f"step {number}: the loss is {loss}; the last checkpoint is intact: lower the learning rate, or check "
                f"the data"
            ) from cause
        return loss


class Clock:
    """Seconds of training over all resumptions of a run."""

    def __init__(self, before: float) -> None:
        self._before, self._start = before, time.monotonic()

    @property
    def here(self) -> float:
        """Seconds in this process."""
        return time.monotonic() - self._start

    @property
    def total(self) -> float:
        """Seconds including those of earlier processes."""
        return self._before + self.here


def metrics_of(
    number: int, result: StepResult, *, tokens_per_step: int, seconds: float, val_loss: float | None
) -> StepMetrics:
    """The immutable record of a step."""
    return StepMetrics(
        step=number,
        loss=result.loss,
        gradient_norm=result.stats.gradient_norm,
        clip_scale=result.stats.clip_scale,
        learning_rate=result.learning_rate,
        tokens_seen=number * tokens_per_step,
        seconds=seconds,
        val_loss=val_loss,
    )
