"""One training step of the same GPT in turret and in a peer: alternating in one run, medians, and their ratio.

python benchmarks/train_step.py --peer torch --json
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from alternate import contenders, serve
from shapes import SHAPES, VOCABULARY, Shape

LR, BETAS, DECAY = 1e-3, (0.9, 0.99), 0.1


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--peer", choices=["torch"], default="torch")
    parser.add_argument("--backend", default="cpu")
    parser.add_argument("--shape", action="append", type=Shape.parse, metavar="B,T,D,H,L")
    parser.add_argument("--rounds", type=int, default=12, help="turns of each contender")
    parser.add_argument("--steps", type=int, default=5, help="steps in a turn")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--worker", nargs=3, metavar=("NAME", "SHAPE", "STATE"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        name, shape, state = options.worker
        serve(WORKERS[name](Shape.parse(shape), Path(state), options.backend))
        return
    results = [measure(shape, options) for shape in options.shape or SHAPES]
    if options.json:
        print(json.dumps(results, indent=2))
        return
    for r in results:
        print(
            f"({r['shape']})  turret {r['turret_ms']:.1f} ms  {options.peer} {r['peer_ms']:.1f} ms  "
            f"ratio {r['ratio']:.2f}  {r['turret_gflops']:.0f} GFLOP/s of {r['sgemm_gflops']:.0f}  "
            f"losses differ by {r['loss_difference']:.1e}"
        )


def measure(shape: Shape, options: argparse.Namespace) -> dict[str, Any]:
    """Alternating turns at one shape. The peer starts from turret's weights, so that losses can be compared."""
    with tempfile.TemporaryDirectory() as folder:
        state = str(Path(folder, "state.npz"))
        base = [__file__, "--backend", options.backend, "--worker"]
        commands = {name: [*base, name, str(shape), state] for name in ("turret", options.peer)}
        with contenders(commands) as running:
            times: dict[str, list[float]] = {name: [] for name in running}
            losses: dict[str, list[float]] = {name: [] for name in running}
            ceiling = []
            for turn in range(options.rounds + 1):
                for name, contender in running.items():
                    answer = contender.ask({"do": "steps", "first": turn * options.steps, "count": options.steps})
                    losses[name] += answer["losses"]
                    if turn > 0:  # the first turn warms up
                        times[name] += answer["ms"]
                ceiling.append(running["turret"].ask({"do": "sgemm"}))
    ours, theirs = (statistics.median(times[name]) for name in ("turret", options.peer))
    return {
        "shape": str(shape),
        "peer": options.peer,
        "turret_ms": ours,
        "peer_ms": theirs,
        "ratio": theirs / ours,
        "turret_gflops": shape.flops() / ours / 1e6,
        "peer_gflops": shape.flops() / theirs / 1e6,
        "sgemm_gflops": max(ceiling),
        "loss_difference": max(abs(a - b) for a, b in zip(losses["turret"], losses[options.peer], strict=True)),
        "samples": len(times["turret"]),
    }


def _answers(step: Callable[[Any], float], shape: Shape) -> Callable[[dict[str, Any]], Any]:
    def answer(request: dict[str, Any]) -> Any:
        if request["do"] == "sgemm":
            return _sgemm()
        ms, losses = [], []
        for number in range(request["first"], request["first"] + request["count"]):
            ids = shape.ids(number)
            began = time.perf_counter()
            losses.append(step(ids))
            ms.append((time.perf_counter() - began) * 1e3)
        return {"ms": ms, "losses": losses}

    return answer


def _sgemm(size: int = 1024) -> float:
    """GFLOP/s of NumPy's float32 product, the ceiling of anything built from it."""
    a = np.random.default_rng(0).standard_normal((size, size)).astype(np.float32)
    best = min(_timed(lambda: a @ a) for _ in range(5))
    return 2 * size**3 / best / 1e9


def _timed(call: Callable[[], object]) -> float:
    began = time.perf_counter()
    call()
    return time.perf_counter() - began


def turret_worker(shape: Shape, state: Path, backend: str) -> Callable[[dict[str, Any]], Any]:
    """turret's side; leaves its first weights in `state`."""
    import turret
    from turret.models import Decoder, DecoderConfig
    from turret.optim import Adam, decay_groups
    from turret.tensor import ops

    with turret.use_backend(backend) as opened:
        config = DecoderConfig(
            vocabulary=VOCABULARY,
            context=shape.context,
            width=shape.width,
            heads=shape.heads,
            blocks=shape.layers,
            feed_forward=4 * shape.width,
        )
        model = Decoder(config, seed=1)
    np.savez(state, **model.state_dict())  # type: ignore[arg-type]  # names never collide with savez's own keyword
    optimizer = Adam(decay_groups(model.named_parameters(), DECAY), lr=LR, betas=BETAS, max_norm=1.0)

    def step(ids: Any) -> float:
        inputs, targets = (turret.tensor(part, backend=opened) for part in (ids[:, :-1], ids[:, 1:]))
        loss = ops.cross_entropy(model(inputs), targets)
        optimizer.step(turret.backward(loss))
        return float(loss.item())

    return _answers(step, shape)


def torch_worker(shape: Shape, state: Path, backend: str) -> Callable[[dict[str, Any]], Any]:
    """PyTorch's side, eager, on its default threads."""
    from peers.torch_gpt import Gpt, TorchTrainer

    model = Gpt(VOCABULARY, shape.context, shape.width, shape.heads, shape.layers)
    model.load(dict(np.load(state)))
    return _answers(TorchTrainer(model, lr=LR, betas=BETAS, weight_decay=DECAY).step, shape)


WORKERS = {"turret": turret_worker, "torch": torch_worker}

if __name__ == "__main__":
    main()
