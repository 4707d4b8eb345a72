"""The training loop: sample, forward, loss, backward, clip, update, publish."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

import numpy as np

from turret.models import LanguageModel
from turret.nn import computing, dropping
from turret.optim import Adam, AdamStats, Schedule
from turret.spi import DType, NonFiniteError
from turret.tensor import Gradients, RandomStream, Tensor, backward, capture, no_grad, tensor
from turret.tensor.graph import Native

from .metrics import StepMetrics
from .objective import B, Objective, Placed
from .precision import LossScale

B_co = TypeVar("B_co", covariant=True)
DRAWS = 24
"""Bits for the draws of one step: step n begins at draw n * 2^24, so that masks follow from seed and step alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepResult:
    """What one step measured, before it becomes a record; without stats it was skipped. loss_scale: of float16."""

    loss: float
    learning_rate: float
    stats: AdamStats | None
    loss_scale: float | None = None


class Sampler(Protocol[B_co]):
    """Batches as a pure function of step and micro-batch, both counted from 0."""

    def batch(self, step: int, micro: int = 0) -> B_co:
        """Raises: DataError."""
        ...


class Engine(Generic[B]):
    """Performs steps on a model: deterministic given model, optimizer state and step number.

    With `captured`, a step is one program wherever the backend compiles. A step that meets a loss, gradient or update
    that is not finite raises NonFiniteError and changes nothing; with a `scale`, gradients that overflow halve it and
    the step is skipped. dropout: where masks come from. precision: what layers compute in; the loss is float32.
    """

    def __init__(
        self,
        model: LanguageModel,
        optimizer: Adam,
        sampler: Sampler[B],
        schedule: Schedule,
        *,
        objective: Objective[B],
        accumulate: int = 1,
        validation: Sequence[B] = (),
        captured: bool = True,
        dropout: RandomStream | None = None,
        precision: DType | None = None,
        scale: LossScale | None = None,
    ) -> None:
        self.model, self.optimizer, self.sampler, self.schedule = model, optimizer, sampler, schedule
        self.dropout, self.precision, self.scale = dropout, precision, scale
        self.objective, self.accumulate, self.validation = objective, accumulate, tuple(validation)
        self._backend = model.parameters()[0].backend
        drawn = [] if dropout is None else [dropout]
        self._learn = capture(self._learn_step, state=[model, optimizer, *drawn], enabled=captured)
        self._gradients = capture(self._gradients_step, state=[model, *drawn], enabled=captured)
        self._update = capture(self._update_step, state=[optimizer], enabled=captured)
        self._measure = capture(self._loss, state=[model, *drawn], enabled=captured)

    @property
    def compiles(self) -> int:
        """Programs compiled so far."""
        return sum(each.compiles for each in (self._learn, self._gradients, self._update, self._measure))

    def step(self, number: int) -> StepResult:
        """Step `number`, from 1: one update from `accumulate` batches, each weighted by its share of the tokens."""
        batches = [self.sampler.batch(number - 1, micro) for micro in range(self.accumulate)]
        rate = self.optimizer.lr = self.schedule(number)
        scale = None if self.scale is None else self.scale.value
        self._rewind(number)
        try:
            losses = self._learn_from(batches)
        except NonFiniteError as error:
            self._rewind(number)
            with dropping(self.dropout):  # the loss that the step had
                loss = self._finite_loss(number, self._losses(batches), error)
            if self.scale is None or not self.scale.overflowed():
                raise
            return StepResult(loss=loss, learning_rate=rate, stats=None, loss_scale=scale)
        loss = self._finite_loss(number, losses)
        if self.scale is not None:
            self.scale.passed()
        assert self.optimizer.stats is not None
        return StepResult(loss=loss, learning_rate=rate, stats=self.optimizer.stats, loss_scale=scale)

    def evaluate(self) -> float:
        """Mean loss over the validation batches, nats per token. Raises: NonFiniteError."""
        losses = self._losses(self.validation)
        loss = sum(share * float(value.item()) for share, value in losses)
        if not math.isfinite(loss):
            raise NonFiniteError(f"the validation loss is {loss}; lower the learning rate, or check the data")
        return loss

    def _learn_from(self, batches: Sequence[B]) -> list[tuple[float, Tensor]]:
        """Updates the model; shares and losses of the batches. Several batches are added up between two programs."""
        scale = 1.0 if self.scale is None else self.scale.value
        scaling = [] if self.scale is None else [self._number(scale), self._number(1 / scale)]
        if len(batches) == 1:
            return [(1.0, self._learn(self._placed(batches[0]), scaling))]
        losses: list[tuple[float, Tensor]] = []
        total: list[Tensor] = []
        for share, batch in self._shares(batches):
            weight = self._number(share * scale)
            loss, total = self._gradients(self._placed(batch), weight, total)
            losses.append((share, loss))
        if math.isfinite(sum(share * float(loss.item()) for share, loss in losses)):
            self._update(total, scaling[1:])
        return losses

    def _rewind(self, number: int) -> None:
        """The next masks are the first ones of a step."""
        if self.dropout is not None:
            self.dropout.counter = number << DRAWS

    def _number(self, value: float) -> Tensor:
        return tensor(value, dtype="float32", backend=self._backend)

    def _learn_step(self, placed: Placed, scaling: list[Tensor]) -> Tensor:
        """scaling: the factor of the loss and its inverse, or nothing."""
        with dropping(self.dropout):
            loss = self._loss(placed)
        if scaling:
            self.optimizer.step(self._scaled(backward(loss, scaling[0]), scaling[1]), loss=loss)
        else:
            self.optimizer.step(backward(loss), loss=loss)
        return loss

    def _gradients_step(self, placed: Placed, weight: Tensor, total: list[Tensor]) -> tuple[Tensor, list[Tensor]]:
        """The loss, and `total` with the gradients of weight * loss added; an empty total begins one."""
        with dropping(self.dropout):
            loss = self._loss(placed)
        found = backward(loss, weight)
        fresh = [found[p] for p in self.model.parameters() if p.trainable]
        return loss, [a + b for a, b in zip(total, fresh, strict=True)] if total else fresh

    def _update_step(self, total: list[Tensor], inverse: list[Tensor]) -> None:
        """inverse: what the scaled gradients are multiplied by, or nothing."""
        trainable = [p for p in self.model.parameters() if p.trainable]
        values: dict[Tensor, Native] = {p: gradient.value for p, gradient in zip(trainable, total, strict=True)}
        gradients = Gradients(self._backend, values)
        self.optimizer.step(self._scaled(gradients, inverse[0]) if inverse else gradients)

    def _scaled(self, gradients: Gradients, factor: Tensor) -> Gradients:
        trainable = [p for p in self.model.parameters() if p.trainable]
        values: dict[Tensor, Native] = {p: (gradients[p] * factor).value for p in trainable}
        return Gradients(self._backend, values)

    def _losses(self, batches: Sequence[B]) -> list[tuple[float, Tensor]]:
        with no_grad():
            return [(share, self._measure(self._placed(batch))) for share, batch in self._shares(batches)]

    def _placed(self, batch: B) -> Placed:
        return self.objective.place(batch, self._backend)

    def _loss(self, placed: Placed) -> Tensor:
        with computing(self.precision):
            logits = self.objective.logits(self.model, placed)
        return self.objective.loss(logits if self.precision is None else logits.cast("float32"), placed)

    def _shares(self, batches: Sequence[B]) -> list[tuple[float, B]]:
        """Every batch with its part of what counts."""
        weights = [self.objective.weight(batch) for batch in batches]
        return [(weight / sum(weights), batch) for weight, batch in zip(weights, batches, strict=True)]

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
        gradient_norm=None if result.stats is None else result.stats.gradient_norm,
        clip_scale=None if result.stats is None else result.stats.clip_scale,
        learning_rate=result.learning_rate,
        tokens_seen=number * tokens_per_step,
        seconds=seconds,
        val_loss=val_loss,
        loss_scale=result.loss_scale,
    )
