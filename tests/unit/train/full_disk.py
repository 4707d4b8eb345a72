"""Saves a small checkpoint and metrics, then more than the disk takes, and prints as JSON what happened."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
from killed_writer import content_of

from turret.spi import CheckpointError, DataError
from turret.train.checkpoint import CheckpointStore
from turret.train.metrics import MetricsLog, StepMetrics, read_metrics

RECORD = StepMetrics(step=0, loss=1, gradient_norm=1, clip_scale=1, learning_rate=1, tokens_seen=1, seconds=1)


def main(run: Path, limited_file: bool) -> None:
    if limited_file:
        import resource
        import signal

        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (2**19, 2**19))
    store = CheckpointStore(run, keep=1)
    store.save(content_of(1, 10))
    said: dict[str, object] = {}
    try:
        store.save(replace(content_of(2, 10), optimizer={"m": np.zeros(2**19, np.float32)}))
    except CheckpointError as error:
        said["checkpoint"] = str(error)
    log = MetricsLog(run / "metrics.jsonl")
    try:
        for step in range(100_000):
            log.append(replace(RECORD, step=step))
    except DataError as error:
        said["metrics"] = str(error)
    said["torn"] = not (run / "metrics.jsonl").read_bytes().endswith(b"\n")
    said["logged"] = len(read_metrics(run / "metrics.jsonl"))
    said["left"] = sorted(os.listdir(store.folder))
    checkpoint, skipped = store.latest_good()
    said["latest"] = checkpoint and (checkpoint.step, len(skipped))
    os.truncate(run / "metrics.jsonl", 0)
    said["again"] = store.save(content_of(3, 10)).name
    print(json.dumps(said))


if __name__ == "__main__":
    main(Path(sys.argv[2]), sys.argv[1] == "limit")
