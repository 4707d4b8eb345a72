"""Whoever watches a run is told everything in order, as JSON lines or on a terminal."""

from __future__ import annotations

import io
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import fields
from typing import Any

import pytest
from rich.console import Console

from turret.spi import ConfigError
from turret.train.metrics import StepMetrics
from turret.train.telemetry import (
    Broadcast,
    CheckpointSaved,
    Evaluation,
    JsonLog,
    Observer,
    ProgressBar,
    TrainDone,
    TrainStart,
    choose_sink,
)

START = TrainStart(
    run="runs/a",
    model="decoder",
    parameters=19_419,
    backend="cpu",
    device="",
    steps=100,
    start_step=0,
    tokens_seen=0,
)
EVAL = Evaluation(step=50, val_loss=2.3456, batches=20, seconds=0.5)
SAVED = CheckpointSaved(step=50, path="runs/a/checkpoints/step-00000050", seconds=0.1)
DONE = TrainDone(
    reason="finished",
    step=100,
    steps=100,
    tokens_seen=76_800,
    train_loss=1.5,
    val_loss=2.25,
    tokens_per_second=1536.0,
    seconds=3725.0,
    checkpoint="runs/[a]/checkpoints/step-00000100",
)


def metrics(step: int) -> StepMetrics:
    return StepMetrics(
        step=step,
        loss=3.25,
        gradient_norm=1.5,
        clip_scale=0.5,
        learning_rate=1e-3,
        tokens_seen=step * 768,
        seconds=step * 0.5,
    )


class Clock:
    """A clock that the test turns."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class Recorder:
    """Remembers what it is told; raises at the event asked for."""

    def __init__(self, broken_at: type | None = None) -> None:
        self.seen: list[Any] = []
        self.broken_at = broken_at

    def _take(self, event: Any) -> None:
        self.seen.append(event)
        if self.broken_at is type(event):
            raise KeyError("a fault of the observer")

    on_start = on_step = on_eval = on_checkpoint = on_done = _take


def tell(observer: Observer, steps: int = 100) -> None:
    observer.on_start(START)
    for step in range(1, steps + 1):
        observer.on_step(metrics(step))
    observer.on_eval(EVAL)
    observer.on_checkpoint(SAVED)
    observer.on_done(DONE)


def lines(stream: io.StringIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def names(kind: type) -> list[str]:
    return [field.name for field in fields(kind)]


PROGRESS = [
    "step",
    "steps",
    "loss",
    "gradient_norm",
    "clip_scale",
    "learning_rate",
    "tokens_seen",
    "seconds",
    "loss_scale",
    "tokens_per_second",
    "seconds_left",
]


def test_every_line_is_an_event_with_the_documented_keys() -> None:
    stream = io.StringIO()
    tell(JsonLog(stream, clock=Clock()))
    want = {
        "train_start": names(TrainStart),
        "train_progress": PROGRESS,
        "eval": names(Evaluation),
        "checkpoint_saved": names(CheckpointSaved),
        "train_done": names(TrainDone),
    }
    seen = lines(stream)
    assert {line["event"] for line in seen} == set(want)
    for line in seen:
        assert set(line) == {"event", *want[line["event"]]}
        assert re.search(rf"\b{line['event']}\b", str(JsonLog.__doc__))
    assert all(key in str(JsonLog.__doc__) for key in PROGRESS)


def test_progress_waits_half_a_second_but_has_the_first_and_the_last_step() -> None:
    stream, clock = io.StringIO(), Clock()
    log = JsonLog(stream, clock=clock)
    log.on_start(START)
    for step in range(1, 101):
        clock.now += 0.0625
        log.on_step(metrics(step))
    assert [line["step"] for line in lines(stream)[1:]] == [*range(1, 101, 8), 100]


def test_a_run_stopped_early_still_tells_its_last_step_once() -> None:
    stream = io.StringIO()
    tell(JsonLog(stream, clock=Clock()), steps=7)
    assert [line["step"] for line in lines(stream) if line["event"] == "train_progress"] == [1, 7]
    assert lines(stream)[-1]["event"] == "train_done"


def test_pace_is_of_the_steps_seen_here() -> None:
    stream = io.StringIO()
    log = JsonLog(stream, every_s=0.0)
    log.on_start(START)
    for step in (51, 52, 53):
        log.on_step(metrics(step))
    first, _, third = lines(stream)[1:]
    assert (first["tokens_per_second"], first["seconds_left"]) == (None, None)
    assert (third["tokens_per_second"], third["seconds_left"]) == (768 / 0.5, 47 * 0.5)


def test_each_line_is_flushed_whole() -> None:
    written: list[str] = []

    class Stream(io.StringIO):
        def flush(self) -> None:
            written.append(self.getvalue())

    tell(JsonLog(Stream(), clock=Clock()), steps=2)
    assert all(text.endswith("\n") for text in written)
    assert len(written) == len(set(written)) == 6


def test_everyone_is_told_everything_in_order() -> None:
    one, two = Recorder(), Recorder()
    tell(Broadcast([one, two]), steps=2)
    assert one.seen == two.seen == [START, metrics(1), metrics(2), EVAL, SAVED, DONE]


@pytest.mark.parametrize("kind", [TrainStart, StepMetrics, Evaluation, CheckpointSaved, TrainDone])
def test_what_an_observer_raises_reaches_the_caller_as_it_is(kind: type) -> None:
    with pytest.raises(KeyError, match="a fault of the observer"):
        tell(Broadcast([Recorder(), Recorder(broken_at=kind)]))


@pytest.fixture
def terminal() -> Iterator[tuple[ProgressBar, io.StringIO]]:
    stream = io.StringIO()
    bar = ProgressBar(stream, console=Console(file=stream, force_terminal=True, width=80, color_system=None))
    yield bar, stream
    bar.close()


def drawn(stream: io.StringIO) -> list[str]:
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", stream.getvalue())
    return [line.rstrip() for line in re.split(r"[\r\n]+", text) if line.strip()]


def test_the_bar_shows_loss_pace_and_time_left_in_80_columns(terminal: tuple[ProgressBar, io.StringIO]) -> None:
    bar, stream = terminal
    bar.on_start(START)
    for step in range(1, 51):
        bar.on_step(metrics(step))
    bar.on_eval(EVAL)
    bar.close()
    last = drawn(stream)[-1]
    assert "50/100" in last
    assert "loss 3.250" in last
    assert "val 2.346" in last
    assert "1,536 tokens/s, 0:00:25 left" in last
    assert len(last) <= 80
    assert drawn(stream)[0] == "training decoder, 19,419 parameters, on cpu, from the start"


def test_the_bar_ends_with_what_was_reached(terminal: tuple[ProgressBar, io.StringIO]) -> None:
    bar, stream = terminal
    tell(bar)
    assert drawn(stream)[-2:] == [
        "finished at step 100 after 1:02:05, validation loss 2.2500 nats per token",
        "checkpoint: runs/[a]/checkpoints/step-00000100",
    ]
    assert stream.getvalue().endswith("\n")


def test_a_closed_bar_gives_the_cursor_and_the_streams_back(terminal: tuple[ProgressBar, io.StringIO]) -> None:
    bar, stream = terminal
    before = sys.stdout, sys.stderr
    bar.on_start(START)
    assert sys.stdout is before[0], "stdout carries results only"
    bar.on_step(metrics(1))
    bar.close()
    bar.close()
    assert (sys.stdout, sys.stderr) == before
    assert stream.getvalue().rindex("\x1b[?25h") > stream.getvalue().rindex("\x1b[?25l")


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("log", "stream", "term", "kind"),
    [
        ("auto", Terminal(), "xterm", ProgressBar),
        ("auto", Terminal(), "dumb", JsonLog),
        ("auto", io.StringIO(), "xterm", JsonLog),
        ("json", Terminal(), "xterm", JsonLog),
        ("json", io.StringIO(), "xterm", JsonLog),
        ("progress", Terminal(), "xterm", ProgressBar),
    ],
)
def test_the_sink_fits_the_stream(
    monkeypatch: pytest.MonkeyPatch, log: str, stream: io.StringIO, term: str, kind: type
) -> None:
    monkeypatch.setenv("TERM", term)
    assert type(choose_sink(log, stream)) is kind


def test_a_bar_without_a_terminal_is_refused() -> None:
    with pytest.raises(ConfigError, match="needs a terminal and this is none; choose log = auto or json"):
        choose_sink("progress", io.StringIO())


@pytest.mark.parametrize("log", ["", "JSON", "bar"])
def test_an_unknown_sink_is_refused(log: str) -> None:
    with pytest.raises(ConfigError, match="choose auto, progress or json"):
        choose_sink(log, io.StringIO())


def test_rich_is_imported_by_the_bar_only() -> None:
    code = (
        "import io, sys; from turret.train.telemetry import *; choose_sink('json', io.StringIO()); "
        "print('rich' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout == "False\n"
