"""What the library tells while it works (which backend was chosen and why), shown on stderr."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from contextlib import contextmanager

import click

from .screen import visible

_LOGGER = logging.getLogger("turret")


class Notices(logging.Handler):
    """Writes records of the logger `turret` to stderr: the message, or one JSON object a line."""

    as_json = False

    def emit(self, record: logging.LogRecord) -> None:
        text = record.getMessage()
        if self.as_json:
            text = json.dumps({"event": "log", "level": record.levelname.lower(), "message": text})
        click.echo(visible(text), err=True)


def notice(text: str) -> None:
    """Tells of something that does not end the command."""
    _LOGGER.warning(text)


@contextmanager
def on_stderr() -> Iterator[Notices]:
    """Shows notices inside the block and leaves the logger as it was."""
    handler, level = Notices(), _LOGGER.level
    _LOGGER.addHandler(handler)
    _LOGGER.setLevel(logging.INFO)
    try:
        yield handler
    finally:
        _LOGGER.removeHandler(handler)
        _LOGGER.setLevel(level)


def switch_to_json() -> None:
    """From now on notices of this command are JSON objects, for a stderr that a machine reads."""
    for handler in _LOGGER.handlers:
        if isinstance(handler, Notices):
            handler.as_json = True
