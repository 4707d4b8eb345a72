"""Which sink a run gets, from what the user asked for and where the log goes."""

from __future__ import annotations

import os
from typing import TextIO

from turret.spi import ConfigError
from turret.train.telemetry.json_log import JsonLog
from turret.train.telemetry.observer import Sink
from turret.train.telemetry.progress import ProgressBar


def choose_sink(log: str, stream: TextIO) -> Sink:
    """auto: a progress bar on a terminal that can redraw a line, JSON lines elsewhere; progress or json: that one.

    Raises: ConfigError for another word, and for progress where there is no terminal.
    """
    if log not in ("auto", "progress", "json"):
        raise ConfigError(f"log = {log!r} is not known; choose auto, progress or json")
    terminal = stream.isatty()
    if log == "progress" and not terminal:
        raise ConfigError("a progress bar needs a terminal and this is none; choose log = auto or json")
    if log == "progress" or (log == "auto" and terminal and os.environ.get("TERM") not in ("dumb", "unknown")):
        return ProgressBar(stream)
    return JsonLog(stream)
