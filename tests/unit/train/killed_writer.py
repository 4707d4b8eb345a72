"""Saves checkpoints until it is killed, or forks savers that each die at their n-th touch of the file system."""

from __future__ import annotations

import os
import shutil
import signal
import sys
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np

from turret.train.checkpoint import CheckpointContent, CheckpointStore

EVENTS = ("open", "os.", "shutil.", "pathlib.")


def content_of(step: int, size: int) -> CheckpointContent:
    return CheckpointContent(
        model={"kind": "decoder", "config": {}},
        train={},
        tokenizer="bytes",
        data={},
        step=step,
        tokens_seen=step * 10,
        position={"step": step, "tokens_seen": step * 10},
        random={},
        parameters={"w": np.full(size, step, np.float32)},
        optimizer={"m": np.full(2 * size, step, np.float32)},
    )


def save_for_ever(run: Path) -> None:
    """Go on from the last good step: save it again, as a restarted run may, then the next ones; say each when safe."""
    store = CheckpointStore(run, keep=2)
    checkpoint, _ = store.latest_good()
    for step in count(checkpoint.step if checkpoint else 1):
        store.save(content_of(step, 50_000))
        print(step, flush=True)


def die_at_every_touch(folder: Path, step: int) -> None:
    """Run n starts with steps 1 and 2, keeps 2, saves `step` and dies at touch n; the last one lives."""
    first = CheckpointStore(folder / "first", keep=2)
    for earlier in (1, 2):
        first.save(content_of(earlier, 10))
    for number in count():
        run = folder / f"run-{number:03d}"
        shutil.copytree(folder / "first", run)
        child = os.fork()
        if child == 0:
            sys.addaudithook(reaper(number))
            CheckpointStore(run, keep=2).save(content_of(step, 10))
            os._exit(0)
        if os.waitpid(child, 0)[1] == 0:
            break


def reaper(number: int) -> Any:
    touches = count()

    def hook(event: str, _: object) -> None:
        if event.startswith(EVENTS) and next(touches) == number:
            os.kill(os.getpid(), signal.SIGKILL)

    return hook


if __name__ == "__main__":
    if sys.argv[1] == "for-ever":
        save_for_ever(Path(sys.argv[2]))
    else:
        die_at_every_touch(Path(sys.argv[2]), int(sys.argv[1]))
