"""Runs with dropout, halves, flash attention, checkpointing and pages: the same losses stopped, resumed or captured."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest

from turret.registry import open_backend
from turret.spi import CheckpointError, ConfigError
from turret.train import RunConfig
from turret.train.checkpoint import CheckpointContent, find_checkpoint, read_checkpoint
from turret.train.metrics import StepMetrics, read_metrics
from turret.train.run import METRICS, RunResult, run_training

STEPS = 8


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> str:
    words = np.random.default_rng(4).choice("a stitch in time saves nine lives of cats".split(), 3000)
    path = tmp_path_factory.mktemp("corpus") / "words.txt"
    path.write_text(" ".join(words))
    return str(path)


def tiny(corpus: str, **changes: object) -> RunConfig:
    config = RunConfig(
        corpus=(corpus,), layers=2, heads=2, width=16, context=16, batch=2, steps=STEPS, warmup=2, eval_every=4,
        eval_batches=2, checkpoint_every=4,
    )  # fmt: skip
    return dataclasses.replace(config, **changes)  # type: ignore[arg-type]


def trained(config: RunConfig, out: Path, spec: str, resume: CheckpointContent | None = None) -> RunResult:
    return run_training(config, out, open_backend(spec), resume=resume)


def told(out: Path) -> list[StepMetrics]:
    return [dataclasses.replace(record, seconds=0.0) for record in read_metrics(out / METRICS)]


ALL = {
    "dropout": 0.1,
    "attention": "flash",
    "activation_checkpointing": "block",
    "optimizer_page": 500,
}
RUNS = [
    ("cpu", "decoder", {"dropout": 0.2}),
    ("cpu", "mini", {**ALL, "accumulate": 2}),
    ("minimal", "decoder", {"precision": "float16", "dropout": 0.1}),
    pytest.param("tpu:cpu", "mini", {**ALL, "precision": "bfloat16", "layers": 1}, marks=pytest.mark.slow),
    pytest.param("metal:cpu", "decoder", {**ALL, "precision": "float16", "layers": 1}, marks=pytest.mark.slow),
]


@pytest.mark.parametrize(("spec", "family", "flags"), RUNS)
def test_a_run_resumed_from_its_middle_is_the_run_that_was_never_stopped(
    tmp_path: Path, corpus: str, spec: str, family: str, flags: dict[str, object]
) -> None:
    config = tiny(corpus, model=family, **flags)
    whole = trained(config, tmp_path / "whole", spec)
    middle = read_checkpoint(find_checkpoint(tmp_path / "whole" / "checkpoints" / "step-00000004"))
    again = trained(config, tmp_path / "again", spec, resume=middle)
    assert told(tmp_path / "whole")[4:] == told(tmp_path / "again")
    for (name, one), (_, other) in zip(whole.model.state_dict().items(), again.model.state_dict().items(), strict=True):
        assert one.tobytes() == other.tobytes(), name


@pytest.mark.slow
@pytest.mark.parametrize("spec", ["tpu:cpu", "metal:cpu"])
def test_a_captured_step_draws_the_masks_of_the_eager_one(tmp_path: Path, corpus: str, spec: str) -> None:
    losses = []
    for capture in (True, False):
        config = tiny(corpus, capture=capture, steps=3, layers=1, dropout=0.2, activation_checkpointing="block")
        trained(config, tmp_path / str(capture), spec)
        losses.append([record.loss for record in told(tmp_path / str(capture))])
    np.testing.assert_allclose(*losses, rtol=2e-6)


@pytest.mark.slow
def test_one_seed_is_one_run_on_every_backend(tmp_path: Path, corpus: str) -> None:
    losses = {}
    for spec in ("cpu", "minimal", "tpu:cpu", "metal:cpu"):
        trained(tiny(corpus, steps=4, dropout=0.2), tmp_path / spec, spec)
        losses[spec] = [record.loss for record in told(tmp_path / spec)]
    for spec, found in losses.items():
        np.testing.assert_allclose(found, losses["cpu"], rtol=1e-5, err_msg=spec)


def test_pages_checkpointing_and_their_sizes_change_no_bit(tmp_path: Path, corpus: str) -> None:
    states = []
    for number, flags in enumerate(
        ({}, {"optimizer_page": 7}, {"optimizer_page": 10**9}, {"activation_checkpointing": "block"})
    ):
        result = trained(tiny(corpus, dropout=0.1, **flags), tmp_path / str(number), "cpu")
        states.append([x.tobytes() for x in result.model.state_dict().values()])
    assert states[0] == states[1] == states[2] == states[3]


def test_skipped_steps_are_counted_in_what_a_run_says(tmp_path: Path, corpus: str) -> None:
    config = tiny(corpus, precision="float16", steps=4)
    trained(config, tmp_path / "run", "minimal")
    found = read_checkpoint(find_checkpoint(tmp_path / "run"))
    state = {"value": 2.0**24, "good": 0, "skipped": 1}
    edited = dataclasses.replace(found, extra={"loss_scale": state}, train={**found.train, "steps": STEPS})
    result = trained(dataclasses.replace(config, steps=STEPS), tmp_path / "more", "minimal", resume=edited)
    skipped = [record.step for record in told(tmp_path / "more") if record.gradient_norm is None]
    assert skipped and skipped[0] == 5
    assert result.done.skipped_steps == 1 + len(skipped)
    records = [json.loads(line) for line in (tmp_path / "more" / METRICS).read_text().splitlines()]
    assert records[0]["loss_scale"] == 2.0**24 and records[1]["loss_scale"] == 2.0**23


@pytest.mark.parametrize("extra", [{}, {"loss_scale": 5}, {"loss_scale": {"value": 3.0, "good": 0, "skipped": 0}}])
def test_a_float16_checkpoint_without_a_good_loss_scale_is_refused(
    tmp_path: Path, corpus: str, extra: dict[str, object]
) -> None:
    config = tiny(corpus, precision="float16", steps=4)
    trained(config, tmp_path / "run", "minimal")
    damaged = dataclasses.replace(read_checkpoint(find_checkpoint(tmp_path / "run")), extra=extra)
    with pytest.raises(CheckpointError, match=r"loss.scale"):
        trained(dataclasses.replace(config, steps=8), tmp_path / "more", "minimal", resume=damaged)


def test_a_precision_that_is_no_gain_is_refused_before_there_is_a_folder(tmp_path: Path, corpus: str) -> None:
    with pytest.raises(ConfigError, match="no arithmetic in float16"):
        trained(tiny(corpus, precision="float16"), tmp_path / "run", "cpu")
    assert not (tmp_path / "run").exists()


def test_a_float16_run_resumed_where_it_cannot_go_on_is_told_to_choose_another_backend(
    tmp_path: Path, corpus: str
) -> None:
    config = tiny(corpus, precision="float16", steps=4)
    trained(config, tmp_path / "run", "minimal")
    found = read_checkpoint(find_checkpoint(tmp_path / "run"))
    with pytest.raises(ConfigError, match=r"no arithmetic in float16.*choose a backend that computes in float16$"):
        trained(dataclasses.replace(config, steps=8), tmp_path / "more", "cpu", resume=found)
    assert not (tmp_path / "more").exists()


def test_pages_so_small_that_steps_crawl_are_refused_with_the_least_that_is_not(tmp_path: Path, corpus: str) -> None:
    usual = RunConfig(corpus=(corpus,), optimizer_page=1)
    with pytest.raises(ConfigError, match=r"optimizer-page 1 cuts the 867328 parameters.*at least 9 for this model"):
        trained(usual, tmp_path / "run", "cpu")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"dropout": 1.0}, "dropout 1.0; wanted a rate"),
        ({"dropout": -0.1}, "dropout -0.1"),
        ({"attention_dropout": 2.0}, "attention dropout 2.0"),
        ({"residual_dropout": float("nan")}, "residual_dropout is nan; wanted a number"),
        ({"embedding_dropout": float("inf")}, "embedding dropout inf"),
        ({"precision": "half"}, "precision 'half'; wanted one of float32, bfloat16, float16"),
        ({"optimizer_page": 0}, "optimizer-page 0; wanted at least 1"),
        ({"optimizer_page": 2.5}, "optimizer_page is 2.5; wanted a whole number"),
        ({"attention": "linear"}, "attention 'linear'; wanted one of materialized, flash"),
        ({"activation_checkpointing": "all"}, "wanted one of none, block"),
    ],
)
def test_a_flag_that_makes_no_sense_is_named(corpus: str, flags: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        tiny(corpus, **flags)


@pytest.mark.parametrize(("key", "value"), [("dropout", 0.3), ("precision", "float16"), ("attention_dropout", 0.0)])
def test_a_resumed_run_keeps_what_decides_its_losses(corpus: str, key: str, value: object) -> None:
    config = tiny(corpus, dropout=0.1).resolved()
    with pytest.raises(ConfigError, match=f"keeps {key.replace('_', '-')}"):
        config.resumed({key: value})
    assert config.resumed({"optimizer_page": 64, "attention": "flash"}).optimizer_page == 64
