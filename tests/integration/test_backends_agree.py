"""The same run on every backend: equal weights and batches, losses beside the float64 truth, portable checkpoints."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from turret.conformance.oracle import adam as adam_oracle
from turret.conformance.oracle import models as oracle
from turret.conformance.shaken import spread
from turret.data import BatchSampler, ByteTokenizer, Split, open_corpus
from turret.models import DecoderConfig, MiniConfig, build_model
from turret.optim import Adam, decay_groups, warmup_cosine
from turret.registry import open_backend, use_backend
from turret.train import Engine, RunConfig
from turret.train.metrics import read_metrics
from turret.train.objective import NextToken
from turret.train.resume import plan
from turret.train.run import run_training

BACKENDS = ["cpu", "metal:cpu", "tpu:cpu", "cuda:emulated"]
COMPILING = BACKENDS[1:]
CONFIGS: dict[str, Any] = {
    "decoder": DecoderConfig(vocabulary=256, context=8, width=16, heads=2, blocks=1, feed_forward=32),
    "mini": MiniConfig(vocabulary=256, context=8, width=16, heads=2, kv_heads=1, blocks=1, feed_forward=32),
}
BETAS, DECAY, MAX_NORM, EPS = (0.9, 0.99), 0.1, 1.0, 1e-8
STEPS, BATCH = 100, 4
RATE = warmup_cosine(1e-3, min_lr=1e-4, warmup=10, steps=STEPS)


def sampler(folder: Path) -> BatchSampler:
    path = folder / "text.txt"
    path.write_text("".join(f"{n} times {n} is {n * n}; " for n in range(300)))
    corpus = open_corpus([path])
    return BatchSampler(corpus, ByteTokenizer(), Split.cut(len(corpus), val_fraction=0.1, context=8).train, 8, BATCH, 0)


def losses_of(weights: Mapping[str, Any], config: Any, batches: BatchSampler) -> dict[str, Any]:
    """The losses of every step in float64, by the papers' formulas."""
    params = tuple(weights[name].astype(np.float64) for name in weights)
    first = second = tuple(np.zeros(p.shape) for p in params)
    found = []
    for n in range(1, STEPS + 1):
        batch = batches.batch(n - 1)
        here = dict(zip(weights, params, strict=True))
        loss, gradients = oracle.loss_and_gradients(config, here, batch.inputs, batch.targets)
        found.append(float(loss))
        params, first, second, _, _ = adam_oracle.update(
            params,
            [gradients[name] for name in weights],
            first,
            second,
            lr=np.asarray(RATE(n)),
            correction1=np.asarray(1 - BETAS[0] ** n),
            correction2=np.asarray(1 - BETAS[1] ** n),
            betas=BETAS,
            eps=EPS,
            decay=[DECAY if p.ndim >= 2 else 0.0 for p in params],
            max_norm=MAX_NORM,
        )
    return {"losses": np.array(found)}


@pytest.mark.parametrize("family", CONFIGS)
def test_a_hundred_losses_stay_as_near_to_the_truth_as_rounded_weights_do(family: str, tmp_path: Path) -> None:
    config, batches = CONFIGS[family], sampler(tmp_path)
    weights = build_model(config, seed=2).state_dict()
    want, allowed = spread(lambda moved: losses_of(moved, config, batches), weights, np.random.default_rng(0))
    for spec in BACKENDS:
        with use_backend(spec):
            model = build_model(config, seed=2)
        for name, value in model.state_dict().items():
            assert value.tobytes() == weights[name].tobytes(), f"{spec} begins with another {name}"
        optimizer = Adam(decay_groups(model.named_parameters(), DECAY), betas=BETAS, eps=EPS, max_norm=MAX_NORM)
        engine = Engine(model, optimizer, batches, RATE, objective=NextToken())
        got = np.array([engine.step(n).loss for n in range(1, STEPS + 1)])
        off = np.max(np.abs(got - want["losses"]))
        assert off <= STEPS * allowed["losses"], f"{spec}: off by {off}, allowed {STEPS * allowed['losses']}"
        assert got[-1] < got[0] - 1
        assert engine.compiles == int(spec in COMPILING)


@pytest.mark.parametrize("spec", COMPILING)
def test_accumulated_captured_steps_are_the_eager_ones(spec: str, tmp_path: Path) -> None:
    batches, losses = sampler(tmp_path), {}
    for captured in (True, False):
        with use_backend(spec):
            model = build_model(CONFIGS["mini"], seed=2)
        optimizer = Adam(model.named_parameters(), lr=1e-3)
        engine = Engine(model, optimizer, batches, RATE, objective=NextToken(), accumulate=3, captured=captured)
        losses[captured] = [engine.step(n).loss for n in range(1, 4)]
        # gradients that begin a sum, gradients added to one, and the update
        assert engine.compiles == (3 if captured else 0)
    np.testing.assert_allclose(losses[True], losses[False], rtol=1e-5)


def run_config(tmp_path: Path, steps: int, backend: str) -> RunConfig:
    text = tmp_path / "text.txt"
    text.write_text("".join(f"{n} times {n} is {n * n}; " for n in range(300)))
    return RunConfig(
        model="mini", corpus=(str(text),), layers=1, heads=2, width=16, ff=32, context=8, batch=2, steps=steps,
        schedule="constant", warmup=0, eval_every=10, eval_batches=2, backend=backend, seed=4,
    )  # fmt: skip


@pytest.mark.parametrize("specs", [[*BACKENDS, "cpu"], [*BACKENDS[:0:-1], "cpu", "cuda:emulated"]], ids=" to ".join)
def test_a_run_goes_on_from_backend_to_backend(specs: list[str], tmp_path: Path) -> None:
    each, out = 2, tmp_path / "run"
    run_training(run_config(tmp_path, each * len(specs), "cpu"), tmp_path / "whole", open_backend("cpu"))
    want = [record.loss for record in read_metrics(tmp_path / "whole" / "metrics.jsonl")]
    run_training(run_config(tmp_path, each, specs[0]), out, open_backend(specs[0]))
    for legs, spec in enumerate(specs[1:], 2):
        planned = plan(out, "auto", {"steps": each * legs, "backend": spec})
        run_training(planned.config, out, open_backend(spec), resume=planned.checkpoint)
        got = [record.loss for record in read_metrics(out / "metrics.jsonl")]
        assert len(got) == each * legs
        np.testing.assert_allclose(got, want[: each * legs], rtol=1e-4, err_msg=f"{specs[legs - 2]} to {spec}")


@pytest.mark.parametrize("spec", COMPILING)
def test_a_resumed_run_is_the_whole_run_bit_for_bit(spec: str, tmp_path: Path) -> None:
    run_training(run_config(tmp_path, 6, spec), tmp_path / "whole", open_backend(spec))
    out = tmp_path / "parts"
    run_training(run_config(tmp_path, 3, spec), out, open_backend(spec))
    planned = plan(out, "auto", {"steps": 6})
    run_training(planned.config, out, open_backend(spec), resume=planned.checkpoint)
    whole, parts = ([r.loss for r in read_metrics(run / "metrics.jsonl")] for run in (tmp_path / "whole", out))
    assert whole == parts


def test_a_run_without_capture_compiles_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    config = dataclasses.replace(run_config(tmp_path, 2, "tpu:cpu"), capture=False)
    with caplog.at_level(logging.INFO, logger="turret"):
        run_training(config, tmp_path / "eager", open_backend("tpu:cpu"))
        assert "compiled" not in caplog.text
        run_training(run_config(tmp_path, 2, "tpu:cpu"), tmp_path / "captured", open_backend("tpu:cpu"))
    assert "compiled Engine._learn_step in" in caplog.text
    eager, captured = (read_metrics(tmp_path / run / "metrics.jsonl") for run in ("eager", "captured"))
    np.testing.assert_allclose([r.loss for r in eager], [r.loss for r in captured], rtol=1e-5)
