"""One JSON object a line, for runs that nobody watches on a terminal."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any, TextIO

from turret.train.metrics import StepMetrics
from turret.train.telemetry.events import CheckpointSaved, Evaluation, TrainDone, TrainStart
from turret.train.telemetry.pace import Pace


class JsonLog:
    """Writes each event as a line {"event": name, ...} and flushes it.

    train_start: the fields of TrainStart. train_progress: step, steps, loss, gradient_norm and clip_scale (null where
    the step was skipped), learning_rate, tokens_seen, seconds, loss_scale (null except in float16), tokens_per_second
    and seconds_left (null until two steps are known). eval: of Evaluation. checkpoint_saved: of CheckpointSaved.
    train_done: of TrainDone.

    Progress is written at most once in `every_s` seconds of `clock`, but always for the first and the last step.
    """

    def __init__(self, stream: TextIO, *, every_s: float = 0.5, clock: Callable[[], float] = time.monotonic) -> None:
        self._stream = stream
        self._every_s = every_s
        self._clock = clock
        self._pace = Pace(0)
        self._written_at: float | None = None
        self._held_back: StepMetrics | None = None

    def on_start(self, event: TrainStart) -> None:
        self._pace = Pace(event.steps)
        self._write("train_start", asdict(event))

    def on_step(self, event: StepMetrics) -> None:
        self._pace.see(event)
        self._held_back = event
        due = self._written_at is None or self._clock() - self._written_at >= self._every_s
        if due or event.step >= self._pace.steps:
            self._write_progress()

    def on_eval(self, event: Evaluation) -> None:
        self._write("eval", asdict(event))

    def on_checkpoint(self, event: CheckpointSaved) -> None:
        self._write("checkpoint_saved", asdict(event))

    def on_done(self, event: TrainDone) -> None:
        self._write_progress()
        self._write("train_done", asdict(event))

    def close(self) -> None:
        """The stream is the caller's: it stays open."""

    def _write_progress(self) -> None:
        if self._held_back is None:
            return
        record = asdict(self._held_back)
        del record["val_loss"]  # the eval event says it
        record["steps"] = self._pace.steps
        record["tokens_per_second"] = _rounded(self._pace.tokens_per_second)
        record["seconds_left"] = _rounded(self._pace.seconds_left)
        self._held_back = None
        self._written_at = self._clock()
        self._write("train_progress", record)

    def _write(self, name: str, values: Mapping[str, Any]) -> None:
        self._stream.write(json.dumps({"event": name, **values}, allow_nan=False) + "\n")
        self._stream.flush()


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 1)
