"""A progress bar for someone at a terminal."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, TextIO

from turret.train.metrics import StepMetrics
from turret.train.telemetry.events import CheckpointSaved, Evaluation, TrainDone, TrainStart
from turret.train.telemetry.pace import Pace

if TYPE_CHECKING:
    from rich.console import Console

_COLUMNS = (
    "{task.completed}/{task.total}",
    "loss {task.fields[loss]}",
    "val {task.fields[val]}",
    "{task.fields[pace]}",
)


class ProgressBar:
    """Shows steps, loss, validation loss, tokens a second and time left on one line, redrawn in place.

    Draws on `stream` only; from `on_start` to `close` the terminal is rich's.
    """

    def __init__(self, stream: TextIO, *, console: Console | None = None) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn

        self._console = console or Console(file=stream, highlight=False)
        steps, *rest = (TextColumn(text, markup=False) for text in _COLUMNS)
        self._progress = Progress(
            steps,
            BarColumn(bar_width=None),
            *rest,
            console=self._console,
            refresh_per_second=4,
            redirect_stdout=False,  # stdout carries results, not the bar
            expand=True,
        )
        self._pace = Pace(0)
        self._task = self._progress.add_task("", total=None, start=False, visible=False, loss="-", val="-", pace="")

    def on_start(self, event: TrainStart) -> None:
        self._pace = Pace(event.steps)
        begin = f"from step {event.start_step}" if event.start_step else "from the start"
        self._say(
            f"training {event.model}, {event.parameters:,} parameters, on {event.backend}"
            f"{f' ({event.device})' if event.device else ''}, {begin}"
        )
        self._progress.update(self._task, total=event.steps, completed=event.start_step, visible=True)
        self._progress.start()

    def on_step(self, event: StepMetrics) -> None:
        self._pace.see(event)
        self._progress.update(self._task, completed=event.step, loss=f"{event.loss:.3f}", pace=self._pace_text())

    def on_eval(self, event: Evaluation) -> None:
        self._progress.update(self._task, val=f"{event.val_loss:.3f}")

    def on_checkpoint(self, event: CheckpointSaved) -> None:
        """Nothing: where the last checkpoint is, the end says."""

    def on_done(self, event: TrainDone) -> None:
        self.close()
        val = "" if event.val_loss is None else f", validation loss {event.val_loss:.4f} nats per token"
        end = "finished" if event.reason == "finished" else f"stopped by {event.reason}"
        self._say(f"{end} at step {event.step} after {_clock_text(event.seconds)}{val}")
        if event.checkpoint is not None:
            self._say(f"checkpoint: {event.checkpoint}")

    def close(self) -> None:
        self._progress.stop()

    def _pace_text(self) -> str:
        speed, left = self._pace.tokens_per_second, self._pace.seconds_left
        return "" if speed is None or left is None else f"{speed:,.0f} tokens/s, {_clock_text(left)} left"

    def _say(self, text: str) -> None:
        self._console.print(text, markup=False, soft_wrap=True)


def _clock_text(seconds: float) -> str:
    return str(timedelta(seconds=round(seconds)))
