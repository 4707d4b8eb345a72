"""What an observer of a training run is told, as frozen values; a step's value is its `StepMetrics`."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainStart:
    """The run begins, or goes on: from start_step (0 when new) to steps."""

    run: str
    model: str
    parameters: int
    backend: str
    device: str
    steps: int
    start_step: int
    tokens_seen: int
    resumed_from: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """The validation loss (nats per token) at a step; seconds: what measuring it took."""

    step: int
    val_loss: float
    batches: int
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointSaved:
    """A checkpoint is on disk; seconds: what writing it took."""

    step: int
    path: str
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainDone:
    """The run ended in order. reason: finished, SIGINT or SIGTERM; losses are None where none was measured.

    seconds and tokens_seen count all resumptions; tokens_per_second only this one. skipped_steps: those among `step`
    that changed nothing because float16 gradients overflowed.
    """

    reason: str
    step: int
    steps: int
    tokens_seen: int
    train_loss: float | None
    val_loss: float | None
    tokens_per_second: float
    seconds: float
    checkpoint: str | None
    skipped_steps: int = 0
