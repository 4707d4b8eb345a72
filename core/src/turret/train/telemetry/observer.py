"""Who may watch a training run: the observer's callbacks, and one observer that tells several."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from turret.train.metrics import StepMetrics
from turret.train.telemetry.events import CheckpointSaved, Evaluation, TrainDone, TrainStart


class Observer(Protocol):
    """Callbacks of a run, called in the training thread, in order, between steps.

    What a callback raises stops the run and reaches its caller as it is; the last checkpoint stays.
    """

    def on_start(self, event: TrainStart) -> None:
        """Once, before the first step."""
        ...

    def on_step(self, event: StepMetrics) -> None:
        """After every step that was logged: committed, or skipped because its float16 gradients overflowed."""
        ...

    def on_eval(self, event: Evaluation) -> None:
        """After every measurement of the validation loss."""
        ...

    def on_checkpoint(self, event: CheckpointSaved) -> None:
        """After every checkpoint, when it is on disk."""
        ...

    def on_done(self, event: TrainDone) -> None:
        """Once, after the last step of a run that ended in order; not after an error."""
        ...


class Sink(Observer, Protocol):
    """An observer that holds a terminal or stream."""

    def close(self) -> None:
        """Give the terminal back; after an error too, and twice does no harm."""
        ...


class Broadcast:
    """Tells every observer, in the order given; the first that raises stops the telling."""

    def __init__(self, observers: Sequence[Observer]) -> None:
        self.observers = tuple(observers)

    def on_start(self, event: TrainStart) -> None:
        for observer in self.observers:
            observer.on_start(event)

    def on_step(self, event: StepMetrics) -> None:
        for observer in self.observers:
            observer.on_step(event)

    def on_eval(self, event: Evaluation) -> None:
        for observer in self.observers:
            observer.on_eval(event)

    def on_checkpoint(self, event: CheckpointSaved) -> None:
        for observer in self.observers:
            observer.on_checkpoint(event)

    def on_done(self, event: TrainDone) -> None:
        for observer in self.observers:
            observer.on_done(event)
