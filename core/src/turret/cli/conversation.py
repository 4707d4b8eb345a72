"""A conversation as the terminal has it: lines in, commands, answers that stream and can be stopped."""

from __future__ import annotations

import contextlib
import signal
import sys
from collections.abc import Iterable, Iterator
from typing import Any, Self

import click

from turret.generate.conversation import Conversation
from turret.spi import DataError

from .notices import notice
from .screen import visible

PROMPT = "> "
HELP = """/reset        forget the conversation; the system message stays
/system TEXT  tell the model TEXT before the conversation; without TEXT nothing
/help         this list
/quit         leave (or Ctrl-D)
A message that begins with / is written with a blank in front."""


class Talk:
    """Takes lines one by one; what is wrong with one is told on stderr, and the next is taken.

    Ctrl-C is an exception while a line is awaited. While the model answers, on a terminal, the first one asks for an
    end after the token in progress, and a second one ends at once.
    """

    def __init__(self, conversation: Conversation) -> None:
        self._conversation = conversation
        self._stop = False
        self.awaits_line = False

    @contextlib.contextmanager
    def on_terminal(self) -> Iterator[Self]:
        """Ctrl-C stops answers inside the block."""
        before = signal.signal(signal.SIGINT, self._interrupted)
        try:
            yield self
        finally:
            signal.signal(signal.SIGINT, before)

    def _interrupted(self, *_: Any) -> None:
        if self.awaits_line or self._stop:
            raise KeyboardInterrupt
        self._stop = True

    def take(self, lines: Iterable[str | DataError]) -> None:
        """Every line up to the last, or to /quit; one that could not be read is told."""
        for line in lines:
            if isinstance(line, DataError):
                _tell(line)
            elif line.startswith("/"):
                if not self._obey(*line.partition(" ")[::2]):
                    return
            elif line.strip():
                self._answer(line)

    def _obey(self, word: str, rest: str) -> bool:
        """Whether the conversation goes on after a command."""
        if word == "/quit":
            return False
        if word == "/help":
            click.echo(HELP, err=True)
        elif word == "/reset":
            self._conversation.reset()
            _tell("the conversation is forgotten")
        elif word == "/system":
            try:
                self._conversation.set_system(rest.strip() or None)
            except DataError as error:
                _tell(f"{error}; the system message stays as it was")
            else:
                _tell("the system message is set" if rest.strip() else "there is no system message")
        else:
            _tell(f"no command {word!r:.40}; /help lists them")
        return True

    def _answer(self, text: str) -> None:
        self._stop = False
        try:
            answer = self._conversation.ask(text)
        except DataError as error:
            _tell(f"not sent: {error}")
            return
        if dropped := self._conversation.dropped:
            _tell(f"the context of {self._conversation.context} is full: forgot the oldest {_turns(dropped)}")
        try:
            with contextlib.closing(answer):
                for piece in answer:
                    click.echo(visible(piece).encode(), nl=False)
                    if self._stop:
                        break
        except KeyboardInterrupt:
            if not self._stop:  # nobody watches for a second one
                raise
        click.echo()
        self._stop = False
        self._tell_ending()

    def _tell_ending(self) -> None:
        conversation = self._conversation
        if conversation.ended == "stopped":
            _tell("the answer was stopped")
        elif conversation.ended == "length":
            _tell("the answer reached the most tokens it may have")
        if conversation.forgotten:
            _tell("the answer spells a control token: this message and its answer are forgotten")


def typed_lines(talk: Talk) -> Iterator[str | DataError]:
    """Lines that a user types, with the editing keys of readline where Python has it; Ctrl-D ends them.

    Raises: KeyboardInterrupt for Ctrl-C twice in a row.
    """
    with contextlib.suppress(ImportError):
        import readline  # noqa: F401 - from now on `input` edits lines with it
    once = False
    while True:
        talk.awaits_line = True
        try:
            line: str | DataError = input(PROMPT)
        except EOFError:
            click.echo()
            return
        except KeyboardInterrupt:
            if once:
                raise
            once = True
            click.echo()
            _tell("Ctrl-C again, Ctrl-D or /quit leaves")
            continue
        except UnicodeDecodeError as error:
            line = _not_utf8(error)
        finally:
            talk.awaits_line = False
        once = False
        yield line


def piped_lines() -> Iterator[str | DataError]:
    """The lines of stdin, which is no terminal."""
    for raw in sys.stdin.buffer:
        try:
            yield raw.decode("utf-8").rstrip("\r\n")
        except UnicodeDecodeError as error:
            yield _not_utf8(error)


def _not_utf8(error: UnicodeDecodeError) -> DataError:
    return DataError(f"not sent: the line is not UTF-8 ({error.reason} at byte {error.start}); write it in UTF-8")


def _turns(count: int) -> str:
    return "turn" if count == 1 else f"{count} turns"


def _tell(what: object) -> None:
    notice(visible(str(what)))
