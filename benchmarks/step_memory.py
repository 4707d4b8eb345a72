"""Memory and time of a captured training step: attention materialized and flash, activations kept and recomputed.

python benchmarks/step_memory.py --backend cpu --json

Every combination runs in a process of its own. Memory is what the process's peak rose by after the model was made.
"""

from __future__ import annotations

import argparse
import itertools
import json
import resource
import statistics
import subprocess
import sys
import time
from typing import Any

import numpy as np

from turret.models import Decoder, DecoderConfig
from turret.optim import Adam
from turret.registry import use_backend
from turret.tensor import Tensor, backward, capture, ops, tensor

WIDTH, HEADS, BLOCKS, BATCH = 128, 4, 8, 4
WARM_UP, STEPS = 2, 3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--backend", default="cpu")
    parser.add_argument("--context", type=int, action="append", metavar="T", help="repeatable [256 512 1024]")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--plot", metavar="FILE", help="draw memory against T")
    parser.add_argument("--worker", nargs=3, metavar=("T", "ATTENTION", "CHECKPOINTING"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        context, attention, checkpointing = options.worker
        print(json.dumps(measure(options.backend, int(context), attention, checkpointing)))
        return
    rows = [
        in_a_process(options.backend, *combination)
        for combination in itertools.product(
            options.context or (256, 512, 1024), ("materialized", "flash"), ("none", "block")
        )
    ]
    if options.plot:
        draw(rows, options.plot)
    for row in rows:
        print(json.dumps(row) if options.json else "  ".join(f"{key} {value}" for key, value in row.items()))


def in_a_process(backend: str, *combination: object) -> dict[str, Any]:
    command = [sys.executable, __file__, "--backend", backend, "--worker", *map(str, combination)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    row: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return row


def measure(backend: str, context: int, attention: str, checkpointing: str) -> dict[str, Any]:
    """Loss after the last step, MiB, and the median seconds of a step."""
    with use_backend(backend):
        config = DecoderConfig(
            vocabulary=256, context=context, width=WIDTH, heads=HEADS, blocks=BLOCKS, feed_forward=4 * WIDTH
        )
        model = Decoder(config, seed=0).save_memory(attention=attention, checkpointing=checkpointing)
        optimizer = Adam(model.named_parameters(), lr=1e-3)

        def step(ids: Tensor, targets: Tensor) -> Tensor:
            loss = ops.cross_entropy(model(ids), targets)
            optimizer.step(backward(loss), loss=loss)
            return loss

        run, draw = capture(step, state=[model, optimizer]), np.random.default_rng(0)
        before, seconds, loss = _peak_mib(), [], 0.0
        for _ in range(WARM_UP + STEPS):
            ids = draw.integers(0, 256, (BATCH, context + 1), dtype=np.int32)
            start = time.perf_counter()
            loss = run(tensor(ids[:, :-1]), tensor(ids[:, 1:])).item()
            seconds.append(time.perf_counter() - start)
    return {
        "backend": backend,
        "T": context,
        "attention": attention,
        "checkpointing": checkpointing,
        "loss": round(loss, 6),
        "peak_MiB": round(_peak_mib() - before),
        "seconds": round(statistics.median(seconds[WARM_UP:]), 3),
    }


def draw(rows: list[dict[str, Any]], file: str) -> None:
    """One line for each way of training."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6, 4), layout="constrained")
    axes = figure.add_subplot(xlabel="tokens of context", ylabel="MiB above the model", title=rows[0]["backend"])
    for way in dict.fromkeys((row["attention"], row["checkpointing"]) for row in rows):
        points = [(row["T"], row["peak_MiB"]) for row in rows if (row["attention"], row["checkpointing"]) == way]
        axes.plot(*zip(*points, strict=True), marker="o", label=f"{way[0]}, checkpointing {way[1]}")
    axes.legend()
    figure.savefig(file)


def _peak_mib() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


if __name__ == "__main__":
    main()
