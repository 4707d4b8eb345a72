"""Memory and time of a training step, plain and with each way of saving memory.

python benchmarks/step_memory.py --backend cpu --json

Every way runs in a process of its own, in turns. Memory is what the process's peak rose by after the model was made:
activations, gradients, moments, and what a compiler needs. Halves are left out where the device gains nothing by them.
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import subprocess
import sys
import time
from typing import Any

import numpy as np

from turret.models import Decoder, DecoderConfig
from turret.nn import computing, dropping
from turret.optim import Adam
from turret.registry import open_backend, use_backend
from turret.spi import HALVES
from turret.tensor import RandomStream, Tensor, backward, capture, ops, tensor

WIDTH, HEADS, BLOCKS, BATCH = 128, 4, 8, 4
WARM_UP, STEPS = 2, 3
CONTEXTS = (256, 512, 1024, 2048)
WAYS: dict[str, dict[str, Any]] = {
    "plain": {},
    "flash": {"attention": "flash"},
    "block": {"checkpointing": "block"},
    "flash+block": {"attention": "flash", "checkpointing": "block"},
    "pages": {"page": 65536},
    "dropout": {"dropout": 0.1},
    "flash+block+dropout": {"attention": "flash", "checkpointing": "block", "dropout": 0.1},
    "bfloat16": {"precision": "bfloat16"},
    "flash+block+bfloat16": {"attention": "flash", "checkpointing": "block", "precision": "bfloat16"},
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backend", default="cpu")
    parser.add_argument("--context", type=int, action="append", metavar="T", help=f"repeatable {list(CONTEXTS)}")
    parser.add_argument("--way", action="append", choices=WAYS, help="repeatable [all]")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--plot", metavar="FILE", help="draw memory against T")
    parser.add_argument("--worker", nargs=2, metavar=("T", "WAY"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        print(json.dumps(measure(options.backend, int(options.worker[0]), options.worker[1])))
        return
    device = open_backend(options.backend).tools.storage.device()
    ways = [
        way
        for way in options.way or WAYS
        if WAYS[way].get("precision") in (None, *((device.dtypes - device.storage_only) & HALVES))
    ]
    rows = [in_a_process(options.backend, context, way) for context in options.context or CONTEXTS for way in ways]
    if options.plot:
        draw(rows, options.plot)
    for row in rows:
        print(json.dumps(row) if options.json else "  ".join(f"{key} {value}" for key, value in row.items()))


def in_a_process(backend: str, context: int, way: str) -> dict[str, Any]:
    command = [sys.executable, __file__, "--backend", backend, "--worker", str(context), way]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    row: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return row


def measure(backend: str, context: int, way: str) -> dict[str, Any]:
    """Loss after the last step, MiB, and the median seconds of a step."""
    chosen = WAYS[way]
    attention, checkpointing = chosen.get("attention", "materialized"), chosen.get("checkpointing", "none")
    rate, precision = chosen.get("dropout", 0.0), chosen.get("precision")
    with use_backend(backend):
        config = DecoderConfig(
            vocabulary=256, context=context, width=WIDTH, heads=HEADS, blocks=BLOCKS, feed_forward=4 * WIDTH
        )
        model = Decoder(config, seed=0).save_memory(attention=attention, checkpointing=checkpointing)
        model.regularize(attention=rate, residual=rate, embedding=rate)
        stream = RandomStream(0)
        before, seconds, loss = _peak_mib(), [], 0.0
        optimizer = Adam(model.named_parameters(), lr=1e-3, page_elements=chosen.get("page"))

        def step(ids: Tensor, targets: Tensor) -> Tensor:
            with computing(precision), dropping(stream if rate else None):
                logits = model(ids)
            loss = ops.cross_entropy(logits.cast("float32"), targets)
            optimizer.step(backward(loss), loss=loss)
            return loss

        run, draw = capture(step, state=[model, optimizer, stream]), np.random.default_rng(0)
        for _ in range(WARM_UP + STEPS):
            ids = draw.integers(0, 256, (BATCH, context + 1), dtype=np.int32)
            start = time.perf_counter()
            loss = run(tensor(ids[:, :-1]), tensor(ids[:, 1:])).item()
            seconds.append(time.perf_counter() - start)
    return {
        "backend": backend,
        "T": context,
        "way": way,
        "loss": round(loss, 6),
        "peak_MiB": round(_peak_mib() - before),
        "seconds": round(statistics.median(seconds[WARM_UP:]), 3),
    }


def draw(rows: list[dict[str, Any]], file: str) -> None:
    """One line for each way of training."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4.5), layout="constrained")
    axes = figure.add_subplot(xlabel="tokens of context", ylabel="MiB above the model", title=rows[0]["backend"])
    axes.set_xscale("log", base=2)
    axes.set_yscale("log", base=2)
    for way in dict.fromkeys(row["way"] for row in rows):
        points = [(row["T"], row["peak_MiB"]) for row in rows if row["way"] == way]
        axes.plot(*zip(*points, strict=True), marker="o", label=way)
    axes.set_xticks(sorted({row["T"] for row in rows}), [str(t) for t in sorted({row["T"] for row in rows})])
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.legend()
    figure.savefig(file)


def _peak_mib() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


if __name__ == "__main__":
    main()
