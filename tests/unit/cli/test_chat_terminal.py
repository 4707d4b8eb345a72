"""`turret chat` on a terminal: a real process behind a pseudo terminal, as a person would use it."""

from __future__ import annotations

import os
import select
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from chat_models import parrot, saved

if sys.platform == "win32":
    pytest.skip("Windows has no pseudo terminals of this kind", allow_module_level=True)

import pty

SECONDS = 60
INTERRUPT, END_OF_INPUT = b"\x03", b"\x04"
TAKING = """
import fcntl, os, sys, termios
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
os.execv(sys.argv[1], sys.argv[1:])
"""
"""Makes the pseudo terminal the one whose Ctrl-C the process gets, and becomes that process: this one, which may have
threads of array libraries, must not be forked."""


class Terminal:
    """A process on a terminal of its own; `wait_for` reads until a text has come and returns all that came before."""

    def __init__(self, *args: str) -> None:
        self._ours, theirs = pty.openpty()
        environ = {**os.environ, "TERM": "dumb", "INPUTRC": os.devnull}
        self.process = subprocess.Popen(
            [sys.executable, "-c", TAKING, sys.executable, "-m", "turret", "chat", *args],
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            env=environ,
            start_new_session=True,
        )
        os.close(theirs)
        self._pending = ""

    def send(self, text: str | bytes) -> None:
        os.write(self._ours, text if isinstance(text, bytes) else text.encode())

    def wait_for(self, text: str) -> str:
        deadline = time.monotonic() + SECONDS
        while text not in self._pending:
            ready, _, _ = select.select([self._ours], [], [], max(0.0, deadline - time.monotonic()))
            assert ready, f"waited for {text!r}, got {self._pending[-500:]!r}"
            try:
                more = os.read(self._ours, 65536)
            except OSError:  # how Linux says that the other side is closed
                more = b""
            assert more, f"ended before {text!r}, after {self._pending[-500:]!r}"
            self._pending += more.decode("utf-8", "replace")
        before, _, self._pending = self._pending.partition(text)
        return before

    def end(self) -> int:
        """The exit status, once everything was said."""
        try:
            while os.read(self._ours, 65536):
                pass
        except OSError:
            pass
        return self.process.wait(SECONDS)

    def close(self) -> None:
        self.process.kill()
        self.process.wait(SECONDS)
        os.close(self._ours)


@pytest.fixture(scope="module")
def endless(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return saved(parrot("abc", context=8000, ends=False), tmp_path_factory.mktemp("endless") / "model")


@pytest.fixture
def terminal(endless: Path) -> Iterator[Terminal]:
    made = Terminal(str(endless), "--backend", "cpu", "--max-new-tokens", "7000", "--temperature", "0")
    try:
        made.wait_for("/help lists the commands")
        made.wait_for("> ")
        yield made
    finally:
        made.close()


def test_ctrl_c_stops_the_answer_and_the_conversation_goes_on(terminal: Terminal) -> None:
    terminal.send("hello\n")
    terminal.wait_for("abcabcabc")
    terminal.send(INTERRUPT)
    terminal.wait_for("the answer was stopped")
    terminal.wait_for("> ")
    terminal.send("/system be brief\n")
    terminal.wait_for("the system message is set")
    terminal.send("/reset\n")
    terminal.wait_for("the conversation is forgotten")
    terminal.send("again\n")
    terminal.wait_for("abcabcabc")
    terminal.send(INTERRUPT)
    terminal.wait_for("the answer was stopped")
    terminal.wait_for("> ")
    terminal.send(END_OF_INPUT)
    assert terminal.end() == 0


def test_ctrl_c_clears_the_line_and_twice_in_a_row_leaves(terminal: Terminal) -> None:
    terminal.send("half a mess")
    terminal.wait_for("half a mess")
    terminal.send(INTERRUPT)
    terminal.wait_for("Ctrl-C again")
    terminal.wait_for("> ")
    terminal.send("/nope\n")  # a line in between: the next one is the first again
    terminal.wait_for("no command '/nope'")
    terminal.wait_for("> ")
    for wanted in ("Ctrl-C again", None):
        terminal.send(INTERRUPT)
        if wanted:
            terminal.wait_for(wanted)
            terminal.wait_for("> ")
    assert terminal.end() == 130


def test_quit_leaves(terminal: Terminal) -> None:
    terminal.send("/quit\n")
    assert terminal.end() == 0
