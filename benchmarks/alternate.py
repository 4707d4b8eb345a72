"""Contenders in processes of their own, run in turns: an idle one blocks on its pipe and disturbs nobody."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any


class Contender:
    """A child process that answers one JSON line per request line."""

    def __init__(self, name: str, command: list[str]) -> None:
        self.name = name
        self._child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.ask({"do": "ready"})

    def ask(self, request: dict[str, Any]) -> Any:
        assert self._child.stdin is not None and self._child.stdout is not None
        self._child.stdin.write(json.dumps(request) + "\n")
        self._child.stdin.flush()
        line = self._child.stdout.readline()
        if not line:
            raise SystemExit(f"{self.name} ended with status {self._child.wait()}; see its message above")
        return json.loads(line)

    def close(self) -> None:
        assert self._child.stdin is not None
        self._child.stdin.close()
        self._child.wait(timeout=30)


@contextmanager
def contenders(commands: dict[str, list[str]]) -> Iterator[dict[str, Contender]]:
    """Starts every contender; ends them all."""
    with ExitStack() as stack:
        started = {}
        for name, command in commands.items():
            started[name] = Contender(name, [sys.executable, *command])
            stack.callback(started[name].close)
        yield started


def serve(answers: Callable[[dict[str, Any]], Any]) -> None:
    """The child's side: answers requests from stdin until it closes. Only answers go to stdout."""
    out, sys.stdout = sys.stdout, sys.stderr
    for line in sys.stdin:
        request = json.loads(line)
        answer = True if request["do"] == "ready" else answers(request)
        out.write(json.dumps(answer) + "\n")
        out.flush()
