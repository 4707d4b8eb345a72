"""nanoGPT's CPU recipe, trained by turret and by a peer in turns: validation loss and seconds of each.

4 layers, 4 heads, width 128, context 64, batch 12, 2,000 steps, lr 1e-3 to 1e-4 (cosine, warmup 100), beta2 0.99,
weight decay 0.1, clip 1.0; the same first weights and the same batches for both.

python benchmarks/shakespeare.py CORPUS --peer torch
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from alternate import contenders, serve

from turret.data import Batch, BatchSampler, Split, open_corpus
from turret.train import RunConfig
from turret.train.objective import NextToken

VAL_BATCHES = 200
Answer = Callable[[dict[str, Any]], Any]


def recipe(corpus: str, steps: int) -> RunConfig:
    """The configuration of both."""
    return RunConfig(corpus=(corpus,), steps=steps, warmup=min(100, steps // 10), min_lr=1e-4, seed=1).resolved()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("corpus")
    parser.add_argument("--peer", choices=["torch"], default="torch")
    parser.add_argument("--backend", default="cpu")
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--turn", type=int, default=100, help="steps in a turn")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--worker", nargs=2, metavar=("NAME", "STATE"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        name, state = options.worker
        serve(WORKERS[name](recipe(options.corpus, options.steps), Path(state), options.backend))
        return
    results = measure(options)
    if options.json:
        print(json.dumps(results, indent=2))
        return
    for name in ("turret", options.peer):
        r = results[name]
        print(f"{name:7} {r['seconds']:6.1f} s  validation loss {r['val_loss']:.4f} over {VAL_BATCHES} batches")
    print(f"ratio {results['ratio']:.2f}")


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Turns until both have done all steps, then both validation losses."""
    with tempfile.TemporaryDirectory() as folder:
        base = [__file__, options.corpus, "--backend", options.backend, "--steps", str(options.steps), "--worker"]
        commands = {name: [*base, name, str(Path(folder, "state.npz"))] for name in ("turret", options.peer)}
        with contenders(commands) as running:
            seconds = dict.fromkeys(running, 0.0)
            for first in range(1, options.steps + 1, options.turn):
                last = min(options.steps, first + options.turn - 1)
                for name, contender in running.items():
                    seconds[name] += contender.ask({"do": "steps", "first": first, "last": last})
            results: dict[str, Any] = {
                name: {"seconds": seconds[name], "val_loss": contender.ask({"do": "evaluate"})}
                for name, contender in running.items()
            }
    return {**results, "ratio": seconds[options.peer] / seconds["turret"], "steps": options.steps}


def _data(config: RunConfig) -> tuple[BatchSampler, tuple[Batch, ...]]:
    corpus = open_corpus(config.corpus)
    split = Split.cut(len(corpus), val_fraction=config.val_fraction, context=config.context)
    size = (config.context, config.batch, config.seed)
    validation = BatchSampler(corpus, config.byte_tokenizer, split.val, *size).fixed_batches(VAL_BATCHES)
    return BatchSampler(corpus, config.byte_tokenizer, split.train, *size), validation


def _answers(step: Callable[[int], object], evaluate: Callable[[], float]) -> Answer:
    def answer(request: dict[str, Any]) -> Any:
        if request["do"] == "evaluate":
            return evaluate()
        began = time.perf_counter()
        for number in range(request["first"], request["last"] + 1):
            step(number)
        return time.perf_counter() - began

    return answer


def turret_worker(config: RunConfig, state: Path, backend: str) -> Answer:
    """turret's side: the engine of `turret train`; leaves its first weights in `state`."""
    import turret
    from turret.models import build_model
    from turret.optim import Adam, decay_groups
    from turret.train import Engine

    with turret.use_backend(backend):
        model = build_model(config.model_config(), seed=config.seed)
    np.savez(state, **model.state_dict())  # type: ignore[arg-type]  # names never collide with savez's own keyword
    groups = decay_groups(model.named_parameters(), config.weight_decay)
    optimizer = Adam(groups, lr=config.lr, betas=(config.beta1, config.beta2), max_norm=config.grad_clip)
    sampler, validation = _data(config)
    engine = Engine(model, optimizer, sampler, config.schedule_function(), objective=NextToken(), validation=validation)
    return _answers(engine.step, engine.evaluate)


def torch_worker(config: RunConfig, state: Path, backend: str) -> Answer:
    """PyTorch's side, eager, on its default threads."""
    import torch
    from peers.torch_gpt import Gpt, TorchTrainer

    model = Gpt(256, config.context, config.width, config.heads, config.layers)
    model.load(dict(np.load(state)))
    betas = (config.beta1, config.beta2)
    trainer = TorchTrainer(model, lr=config.lr, betas=betas, weight_decay=config.weight_decay)
    schedule, (sampler, validation) = config.schedule_function(), _data(config)

    def step(number: int) -> float:
        return trainer.step(_joined(sampler.batch(number - 1)), lr=schedule(number))

    def evaluate() -> float:
        with torch.no_grad():
            return float(np.mean([trainer.loss(_joined(batch)).item() for batch in validation]))

    return _answers(step, evaluate)


def _joined(batch: Batch) -> Any:
    """(B, T + 1): the peer cuts inputs and targets itself."""
    return np.concatenate([batch.inputs, batch.targets[:, -1:]], axis=1)


WORKERS = {"turret": turret_worker, "torch": torch_worker}

if __name__ == "__main__":
    main()
