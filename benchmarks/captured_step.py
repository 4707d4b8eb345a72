"""turret's captured step beside the program a JAX or MLX user writes by hand: alternating turns, medians, their ratio.

python benchmarks/captured_step.py --backend tpu:cpu --json
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from alternate import contenders, serve
from shapes import VOCABULARY, Shape
from train_step import BETAS, DECAY, LR

AGREEMENT = 1e-4
"""The greatest difference of two losses after the same steps from the same weights."""

WARM_UP = 10
"""Steps in which the learning rate rises, so that a program made for one rate would show as a recompile."""

Worker = Callable[[dict[str, Any]], Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What a peer is measured at unless told otherwise; `steps` make a turn."""

    shapes: tuple[Shape, ...]
    rounds: int
    steps: int


PLANS = {
    "jax": Plan(shapes=(Shape(8, 128, 128, 4, 4), Shape(4, 256, 256, 8, 6)), rounds=8, steps=4),
    "mlx": Plan(shapes=(Shape(4, 64, 64, 4, 2), Shape(8, 128, 128, 4, 4)), rounds=4, steps=2),
}
PEER_OF = {"tpu": "jax", "metal": "mlx"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--backend", default="tpu:cpu", help="tpu:cpu beside JAX, metal:cpu beside MLX")
    parser.add_argument("--peer", choices=sorted(PLANS), help="the other one; for a backend that has no peer here")
    parser.add_argument("--shape", action="append", type=Shape.parse, metavar="B,T,W,H,L")
    parser.add_argument("--rounds", type=int, help="turns of each contender after the first, which warms up")
    parser.add_argument("--no-capture", action="store_true", help="turret runs operation by operation")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--worker", nargs=3, metavar=("NAME", "SHAPE", "FOLDER"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        name, shape, folder = options.worker
        serve(worker(name, Shape.parse(shape), Path(folder), options))
        return
    name, _, device = options.backend.partition(":")
    peer = options.peer or PEER_OF.get(name)
    if peer is None:
        parser.error(f"no peer for '{options.backend}'; name one with --peer {'|'.join(sorted(PLANS))}")
    if name in PEER_OF and device != "cpu":
        parser.error(f"the peers run on the CPU and '{options.backend}' may not; wanted {name}:cpu")
    if options.rounds is not None and options.rounds < 1:
        parser.error(f"--rounds {options.rounds}; wanted at least 1")
    results = [measure(shape, peer, options) for shape in options.shape or PLANS[peer].shapes]
    print(json.dumps(results, indent=2) if options.json else "\n".join(map(described, results)))
    apart = [r for r in results if not r["loss_difference"] <= AGREEMENT]
    if apart:
        raise SystemExit(f"the losses of {', '.join(r['shape'] for r in apart)} differ by more than {AGREEMENT}")


def described(r: dict[str, Any]) -> str:
    """One result in two lines."""
    return (
        f"({r['shape']})  turret on {r['backend']}{'' if r['captured'] else ', not captured'} {r['turret_ms']:.1f} ms  "
        f"{r['peer']} {r['peer_ms']:.1f} ms  "
        f"{r['peer']}/turret {r['peer_over_turret']:.2f}  turret/{r['peer']} {r['turret_over_peer']:.2f}\n"
        f"    first call: turret {r['turret_first_s']:.1f} s, {r['peer']} {r['peer_first_s']:.1f} s  "
        f"programs of turret {r['turret_programs']}  "
        f"losses after {r['steps']} steps: turret {r['turret_loss']:.6f}, {r['peer']} {r['peer_loss']:.6f}, "
        f"greatest difference {r['loss_difference']:.1e}"
    )


def measure(shape: Shape, peer: str, options: argparse.Namespace) -> dict[str, Any]:
    """Alternating turns at one shape. The peer starts from turret's weights and sees turret's batches and rates."""
    steps = PLANS[peer].steps
    rounds = PLANS[peer].rounds if options.rounds is None else options.rounds
    with tempfile.TemporaryDirectory() as folder:
        base = [__file__, "--backend", options.backend, *(["--no-capture"] if options.no_capture else []), "--worker"]
        commands = {name: [*base, name, str(shape), folder] for name in ("turret", peer)}
        with contenders(commands) as running:
            ms: dict[str, list[float]] = {name: [] for name in running}
            losses: dict[str, list[float]] = {name: [] for name in running}
            for turn in range(rounds + 1):
                for name, contender in running.items():
                    answer = contender.ask({"do": "steps", "first": turn * steps, "count": steps})
                    losses[name] += answer["losses"]
                    ms[name] += answer["ms"]
            programs = running["turret"].ask({"do": "programs"})
    ours, theirs = (statistics.median(ms[name][steps:]) for name in ("turret", peer))
    return {
        "shape": str(shape),
        "backend": options.backend,
        "peer": peer,
        "captured": programs > 0,
        "turret_ms": ours,
        "peer_ms": theirs,
        "peer_over_turret": theirs / ours,
        "turret_over_peer": ours / theirs,
        "turret_first_s": ms["turret"][0] / 1e3,
        "peer_first_s": ms[peer][0] / 1e3,
        "turret_programs": programs,
        "steps": len(losses["turret"]),
        "turret_loss": losses["turret"][-1],
        "peer_loss": losses[peer][-1],
        "loss_difference": float(np.max(np.abs(np.subtract(losses["turret"], losses[peer])))),
        "samples": rounds * steps,
    }


def rate(step: int) -> float:
    """The learning rate of a step, from 0."""
    return LR * min(1.0, (step + 1) / WARM_UP)


def worker(name: str, shape: Shape, folder: Path, options: argparse.Namespace) -> Worker:
    """One side. Its temporary folder is new: MLX keeps compiled kernels there, which would make a first call cheap."""
    own = folder / name
    own.mkdir()
    os.environ["TMPDIR"] = str(own)
    state = folder / "state.npz"
    if name == "turret":
        step, programs = turret_step(shape, state, options.backend, capture=not options.no_capture)
    else:
        step, programs = PEERS[name](shape, state), lambda: 1

    def answer(request: dict[str, Any]) -> Any:
        if request["do"] == "programs":
            return programs()
        ms, losses = [], []
        for number in range(request["first"], request["first"] + request["count"]):
            ids, lr = shape.ids(number), rate(number)
            began = time.perf_counter()
            losses.append(step(ids, lr))
            ms.append((time.perf_counter() - began) * 1e3)
        return {"ms": ms, "losses": losses}

    return answer


Step = Callable[[Any, float], float]


def turret_step(shape: Shape, state: Path, backend: str, *, capture: bool) -> tuple[Step, Callable[[], int]]:
    """turret's side, and how many programs it compiled; leaves its first weights in `state`."""
    import turret
    from turret.models import Decoder, DecoderConfig
    from turret.optim import Adam, decay_groups
    from turret.tensor import Tensor, ops

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

    def step(ids: Tensor, targets: Tensor) -> Tensor:
        loss = ops.cross_entropy(model(ids), targets)
        optimizer.step(turret.backward(loss))
        return loss

    captured = turret.capture(step, state=[model, optimizer], enabled=capture)

    def train(ids: Any, lr: float) -> float:
        optimizer.lr = lr
        inputs, targets = (turret.tensor(part, backend=opened) for part in (ids[:, :-1], ids[:, 1:]))
        return float(captured(inputs, targets).item())

    return train, lambda: captured.compiles


def jax_step(shape: Shape, state: Path) -> Step:
    """JAX's side, on the CPU."""
    os.environ["JAX_PLATFORMS"] = "cpu"
    from peers.jax_gpt import JaxTrainer, load

    trainer = JaxTrainer(load(dict(np.load(state))), heads=shape.heads, lr=LR, betas=BETAS, weight_decay=DECAY)
    return lambda ids, lr: trainer.step(ids, lr=lr)


def mlx_step(shape: Shape, state: Path) -> Step:
    """MLX's side, on the CPU."""
    import mlx.core as mx

    mx.set_default_device(mx.Device(mx.cpu))
    from peers.mlx_gpt import MlxTrainer, load

    trainer = MlxTrainer(load(dict(np.load(state))), heads=shape.heads, lr=LR, betas=BETAS, weight_decay=DECAY)
    return lambda ids, lr: trainer.step(ids, lr=lr)


PEERS = {"jax": jax_step, "mlx": mlx_step}

if __name__ == "__main__":
    main()
