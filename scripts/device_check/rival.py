"""One contender of the training step: a child process that is asked for turns, with a limit on every answer."""

from __future__ import annotations

import contextlib
import json
import os
import select
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any


class Gone(Exception):
    """The contender ended; the text says how, and its last words."""


class Late(Gone):
    """It took too long."""


class Rival:
    """A started contender; `close` ends it."""

    def __init__(self, name: str, shape: str, spec: str, folder: Path) -> None:
        self._noise = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as the process that writes to it
        self._child = subprocess.Popen(
            [sys.executable, "-P", "-m", f"{__package__}.rival", name, shape, spec, str(folder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._noise,
        )

    def ask(self, **request: Any) -> None:
        """Sends a request; one that has ended meanwhile says so in the place of its answer."""
        assert self._child.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._child.stdin.write(json.dumps(request).encode() + b"\n")
            self._child.stdin.flush()

    def answer(self, limit_s: float) -> Any:
        """The answer to the last request. Raises: Gone, Late."""
        assert self._child.stdout is not None
        if not select.select([self._child.stdout], [], [], max(0.0, limit_s))[0]:
            raise Late("its turn did not end in time")
        line = self._child.stdout.readline()
        if not line:
            raise Gone(self._last_words())
        return json.loads(line)

    def close(self) -> None:
        """Ends it, whatever it does."""
        self._child.kill()
        with contextlib.suppress(BrokenPipeError):  # of a request that it never read
            self._child.communicate()
        self._noise.close()

    def _last_words(self) -> str:
        status = self._child.wait()
        size = self._noise.seek(0, os.SEEK_END)
        self._noise.seek(max(0, size - 4096))
        lines = [line.strip() for line in self._noise.read().decode(errors="replace").splitlines() if line.strip()]
        return f"it ended with status {status}: {lines[-1] if lines else 'nothing on stderr'}"


Step = Callable[[Any, float], float]


def main() -> None:
    """The child's side: `{"first", "count"}` for a turn of steps, answered by their losses and milliseconds."""
    from alternate import serve
    from captured_step import rate, turret_step
    from shapes import Shape

    name, shape_words, spec, folder = sys.argv[1:]
    shape, state = Shape.parse(shape_words), Path(folder, "state.npz")
    step: Step
    if name.startswith("torch"):
        from .torch_peer import absent, torch_step

        if reason := absent(spec):
            serve(lambda request: {"absent": reason})
            return
        step = torch_step(shape, state, spec, compiled=name == "torch_compile")
    else:
        own = state if name == "captured" else Path(folder, f"{name}.npz")
        step, _ = turret_step(shape, own, spec, capture=name == "captured")
    serve(lambda request: _turn(request, shape, step, rate))


def _turn(request: dict[str, Any], shape: Any, step: Step, rate: Callable[[int], float]) -> dict[str, Any]:
    import time

    ms, losses = [], []
    for number in range(request["first"], request["first"] + request["count"]):
        ids = shape.ids(number)
        began = time.perf_counter()
        losses.append(step(ids, rate(number)))
        ms.append((time.perf_counter() - began) * 1e3)
    return {"ms": ms, "losses": losses}


if __name__ == "__main__":
    main()
