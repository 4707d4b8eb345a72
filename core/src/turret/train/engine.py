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
from turret.tensor import Gradients, Tensor, backward, capture, no_grad, ops, tensor
from turret.tensor.graph import Native

from .metrics import StepMetrics


@dataclass(frozen=True, slots=True, kw_only=True)
class StepResult:
    """What one committed step measured, before it becomes a record."""

    loss: float
    learning_rate: float
    stats: AdamStats


class Engine:
    """Performs steps on a model: deterministic given model, optimizer state and step number.

    With `captured`, a step is one program wherever the backend compiles. A step that meets a loss, gradient or update
    that is not finite raises NonFiniteError and changes nothing.
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
        captured: bool = True,
    ) -> None:
        self.model, self.optimizer, self.sampler, self.schedule = model, optimizer, sampler, schedule
        self.accumulate, self.validation = accumulate, tuple(validation)
        self._backend = model.parameters()[0].backend
        self._learn = capture(self._learn_step, state=[model, optimizer], enabled=captured)
        self._gradients = capture(self._gradients_step, state=[model], enabled=captured)
        self._update = capture(self._update_step, state=[optimizer], enabled=captured)
        self._measure = capture(self._loss, state=[model], enabled=captured)

    @property
    def compiles(self) -> int:
        """Programs compiled so far."""
        return sum(each.compiles for each in (self._learn, self._gradients, self._update, self._measure))

    def step(self, number: int) -> StepResult:
        """Step `number`, from 1: one update from `accumulate` batches, each weighted by its share of the tokens."""
        batches = [self.sampler.batch(number - 1, micro) for micro in range(self.accumulate)]
        rate = self.optimizer.lr = self.schedule(number)
        try:
            losses = self._learn_from(batches)
        except NonFiniteError as error:
            self._finite_loss(number, self._losses(batches), error)
            raise
        loss = self._finite_loss(number, losses)
        assert self.optimizer.stats is not None
        return StepResult(loss=loss, learning_rate=rate, stats=self.optimizer.stats)

    def evaluate(self) -> float:
        """Mean loss over the validation batches, nats per token. Raises: NonFiniteError."""
        losses = self._losses(self.validation)
        loss = sum(share * float(value.item()) for share, value in losses)
        if not math.isfinite(loss):
            raise NonFiniteError(f"the validation loss is {loss}; lower the learning rate, or check the data")
        return loss

    def _learn_from(self, batches: Sequence[Batch]) -> list[tuple[float, Tensor]]:
        """Updates the model; shares and losses of the batches. Several batches are added up between two programs."""
        if len(batches) == 1:
            return [(1.0, self._learn(*self._placed(batches[0])))]
        losses: list[tuple[float, Tensor]] = []
        total: list[Tensor] = []
        for share, batch in _shares(batches):
            weight = tensor(share, dtype="float32", backend=self._backend)
            loss, total = self._gradients(*self._placed(batch), weight, total)
            losses.append((share, loss))
        if math.isfinite(sum(share * float(loss.item()) for share, loss in losses)):
            self._update(total)
        return losses

    def _learn_step(self, ids: Tensor, targets: Tensor) -> Tensor:
        loss = self._loss(ids, targets)
        self.optimizer.step(backward(loss), loss=loss)
        return loss

    def _gradients_step(
        self, ids: Tensor, targets: Tensor, weight: Tensor, total: list[Tensor]
    ) -> tuple[Tensor, list[Tensor]]:
        """The loss, and `total` with the gradients of weight * loss added; an empty total begins one."""
        loss = self._loss(ids, targets)
        found = backward(loss, weight)
        fresh = [found[p] for p in self.model.parameters() if p.trainable]
        return loss, [a + b for a, b in zip(total, fresh, strict=True)] if total else fresh

    def _update_step(self, total: list[Tensor]) -> None:
        trainable = [p for p in self.model.parameters() if p.trainable]
        values: dict[Tensor, Native] = {p: gradient.value for p, gradient in zip(trainable, total, strict=True)}
        self.optimizer.step(Gradients(self._backend, values))

    def _losses(self, batches: Sequence[Batch]) -> list[tuple[float, Tensor]]:
        with no_grad():
            return [(share, self._measure(*self._placed(batch))) for share, batch in _shares(batches)]

    def _placed(self, batch: Batch) -> tuple[Tensor, Tensor]:
        ids, targets = (tensor(x, backend=self._backend) for x in batch)
        return ids, targets

    def _loss(self, ids: Tensor, targets: Tensor) -> Tensor:
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


def _shares(batches: Sequence[Batch]) -> list[tuple[float, Batch]]:
    """Every batch with its part of the tokens."""
    tokens = sum(batch.targets.size for batch in batches)
    return [(batch.targets.size / tokens, batch) for batch in batches]


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
