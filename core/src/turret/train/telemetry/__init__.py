"""Watching a training run: the observer interface, its events, and the sinks that come with turret."""

from turret.train.telemetry.choose import choose_sink
from turret.train.telemetry.events import CheckpointSaved, Evaluation, TrainDone, TrainStart
from turret.train.telemetry.json_log import JsonLog
from turret.train.telemetry.observer import Broadcast, Observer, Sink
from turret.train.telemetry.progress import ProgressBar

__all__ = [
    "Broadcast",
    "CheckpointSaved",
    "Evaluation",
    "JsonLog",
    "Observer",
    "ProgressBar",
    "Sink",
    "TrainDone",
    "TrainStart",
    "choose_sink",
]
