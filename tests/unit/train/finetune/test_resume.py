"""A run that was interrupted goes on to the same bits, and no other run is mistaken for it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from runs import losses
from safetensors.numpy import load_file
from tuning_bases import StopAt, examples, go_on, settings, tune, write_lines

from turret.registry import open_backend
from turret.spi import CheckpointError, ConfigError, DataError
from turret.train import read_checkpoint
from turret.train.finetune import run_finetuning
from turret.train.finetune.resume import plan
from turret.train.resume import plan as plan_training

LONG: dict[str, Any] = {
    **{"steps": 9, "eval_every": 2, "checkpoint_every": 3, "batch": 2, "accumulate": 2, "lr": 0.02},
    **{"adapter_dropout": 0.3, "dropout": 0.1, "optimizer_page": 60, "val_fraction": 0.3},
}
WORSE: dict[str, Any] = {
    **{"steps": 12, "eval_every": 1, "checkpoint_every": 3, "lr": 0.6, "schedule": "constant", "warmup": 0},
    **{"val_fraction": 0.3, "targets": ("query", "value", "down"), "patience": 3},
}


def files(run: Path, part: str) -> dict[str, bytes]:
    """The bits of every array in a part of a run, by file and name."""
    found = sorted((run / part).rglob("*.safetensors"))
    arrays = ((path, name, value) for path in found for name, value in load_file(path).items())
    return {f"{path.relative_to(run)} {name}": value.tobytes() for path, name, value in arrays}


@pytest.mark.parametrize(
    ("method", "stop"),
    [
        *(("lora", 2), ("qlora", 6), ("full", 5)),
        *(pytest.param(*each, marks=pytest.mark.slow) for each in (("lora", 6), ("qlora", 1), ("full", 2))),
    ],
)
def test_an_interrupted_run_ends_with_the_same_bits(
    base: Path, data: Path, tmp_path: Path, method: str, stop: int
) -> None:
    changed = LONG | {"method": method}
    tune(base, data, tmp_path / "whole", **changed)
    stopped = tune(base, data, tmp_path / "run", observers=[StopAt(stop)], **changed)
    assert (stopped.done.reason, stopped.done.step, stopped.outputs) == ("SIGINT", stop, {})
    ended = go_on(tmp_path / "run")
    assert ended.done.reason == "finished"
    assert losses(tmp_path / "run") == losses(tmp_path / "whole")
    for part in ("checkpoints/step-00000009", "merged", *(() if method == "full" else ("adapter",))):
        found = files(tmp_path / "run", part)
        assert found and found == files(tmp_path / "whole", part)


@pytest.mark.parametrize("stop", [3, pytest.param(1, marks=pytest.mark.slow), pytest.param(4, marks=pytest.mark.slow)])
def test_patience_is_exact_across_an_interruption(base: Path, data: Path, tmp_path: Path, stop: int) -> None:
    whole = tune(base, data, tmp_path / "whole", **WORSE)
    assert whole.done.reason == "no better validation loss" and whole.done.step > 4
    tune(base, data, tmp_path / "run", observers=[StopAt(stop)], **WORSE)
    again = go_on(tmp_path / "run")
    assert (again.done.step, again.best_step, again.best_val_loss, again.done.reason) == (
        whole.done.step,
        whole.best_step,
        whole.best_val_loss,
        whole.done.reason,
    )
    assert losses(tmp_path / "run") == losses(tmp_path / "whole")
    assert files(tmp_path / "run", "merged") == files(tmp_path / "whole", "merged")


def test_best_weights_come_along_to_another_folder(base: Path, data: Path, tmp_path: Path) -> None:
    whole = tune(base, data, tmp_path / "run", **WORSE)
    again = go_on(tmp_path / "run", out=tmp_path / "other")
    assert (again.best_step, again.done.reason) == (whole.best_step, whole.done.reason)
    assert files(tmp_path / "other", "merged") == files(tmp_path / "run", "merged")


def test_an_earlier_checkpoint_knows_only_what_was_before_it(base: Path, data: Path, tmp_path: Path) -> None:
    """As after a kill: the best weights on disk may be later ones than the checkpoint knows of."""
    whole = tune(base, data, tmp_path / "run", **WORSE, keep=9)
    before = files(tmp_path / "run", "merged")
    assert whole.best_step > 3 or whole.done.step > 3
    again = go_on(tmp_path / "run" / "checkpoints" / "step-00000003")
    assert (again.done.step, again.best_step) == (whole.done.step, whole.best_step)
    assert files(tmp_path / "run", "merged") == before


def test_patience_that_comes_later_knows_the_weights_of_its_checkpoint_alone(
    base: Path, data: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    first = tune(base, data, tmp_path / "run", **(WORSE | {"patience": None, "steps": 4}))
    losses_before = [loss for _, _, loss in losses(tmp_path / "run") if loss is not None]
    assert losses_before.index(min(losses_before)) + 1 < first.done.step
    again = go_on(tmp_path / "run", patience=2, steps=12)
    assert "its weights were not kept; patience begins anew at step 4" in caplog.text
    assert 4 < again.best_step <= 12 and again.outputs.keys() == {"adapter", "merged"}


def test_more_patience_takes_an_ended_run_further(base: Path, data: Path, tmp_path: Path) -> None:
    ended = tune(base, data, tmp_path / "run", **WORSE)
    assert go_on(tmp_path / "run").done.step == ended.done.step, "it has ended"
    further = go_on(tmp_path / "run", patience=4)
    assert further.done.step > ended.done.step


def test_a_changed_data_file_is_refused_and_a_moved_one_is_not(base: Path, tmp_path: Path) -> None:
    data = write_lines(tmp_path / "d.jsonl", examples())
    tune(base, data, tmp_path / "run")
    (tmp_path / "elsewhere").mkdir()
    moved = Path(shutil.move(data, tmp_path / "elsewhere" / "d.jsonl"))
    with pytest.raises(DataError, match=r"d\.jsonl does not exist"):
        go_on(tmp_path / "run", steps=6)
    assert go_on(tmp_path / "run", steps=6, data=str(moved)).done.step == 6
    write_lines(moved, examples(seed=1))
    with pytest.raises(DataError, match="is not the one this run was trained on: d"):
        go_on(tmp_path / "run", steps=8, data=str(moved))


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"rank": 4}, "a resumed run keeps rank 8, got 4"),
        ({"method": "full"}, "a resumed run keeps method 'lora', got 'full'"),
        ({"targets": ("key",)}, r"a resumed run keeps targets \('query', 'value'\)"),
        ({"steps": 3}, "past --steps 3; ask for more steps"),
    ],
)
def test_what_would_be_another_run_is_refused(
    base: Path, data: Path, tmp_path: Path, given: dict[str, Any], said: str
) -> None:
    tune(base, data, tmp_path / "run")
    with pytest.raises(ConfigError, match=said):
        go_on(tmp_path / "run", **given)


def test_the_two_commands_know_their_own_checkpoints(base: Path, data: Path, tmp_path: Path, trained: Path) -> None:
    tune(base, data, tmp_path / "run")
    with pytest.raises(CheckpointError, match="a checkpoint of turret finetune; resume it with that"):
        plan_training(None, str(tmp_path / "run"), {})
    with pytest.raises(CheckpointError, match="a checkpoint of turret train; resume it with that"):
        plan(None, str(trained), {})
    with pytest.raises(CheckpointError, match="a checkpoint of turret train; resume it with that"):
        run_finetuning(settings(base, data), tmp_path / "other", open_backend("cpu"), resume=read_checkpoint(trained))


@pytest.mark.parametrize(
    ("tuned", "said"),
    [
        ([], "finetune is \\[\\]; wanted an object"),
        ({}, "tuned on a base with fingerprint"),
        ({"base_sha256": "ab"}, "tuned on a base with fingerprint"),
        ({"patience": {"best": 1.0}}, "patience .* at step 4; wanted best"),
        ({"patience": None}, "patience None at step 4"),
    ],
)
def test_a_checkpoint_that_says_something_else_is_refused(
    base: Path, data: Path, tmp_path: Path, tuned: Any, said: str
) -> None:
    from dataclasses import replace

    tune(base, data, tmp_path / "run")
    checkpoint = read_checkpoint(tmp_path / "run")
    facts = checkpoint.extra["finetune"]
    edited = {**facts, **tuned} if isinstance(tuned, dict) and tuned else tuned
    broken = replace(checkpoint, extra={"finetune": edited})
    with pytest.raises(CheckpointError, match=said):
        run_finetuning(settings(base, data), tmp_path / "run", open_backend("cpu"), resume=broken)
    assert json.loads((tmp_path / "run" / "checkpoints" / "step-00000004" / "manifest.json").read_text())


def test_a_checkpoint_of_other_shapes_is_refused(base: Path, data: Path, tmp_path: Path) -> None:
    from dataclasses import replace

    tune(base, data, tmp_path / "run")
    checkpoint = read_checkpoint(tmp_path / "run")
    name = next(iter(checkpoint.parameters))
    wrong = replace(checkpoint, parameters={**checkpoint.parameters, name: np.zeros((1, 1), np.float32)})
    with pytest.raises(CheckpointError, match="the model wants"):
        run_finetuning(settings(base, data), tmp_path / "run", open_backend("cpu"), resume=wrong)


def test_auto_begins_what_was_killed_before_its_first_checkpoint(base: Path, data: Path, tmp_path: Path) -> None:
    """Best weights may be there already."""
    run = tmp_path / "run"
    whole = tune(base, data, tmp_path / "whole", **WORSE)
    tune(base, data, run, **(WORSE | {"steps": 2}))
    for name in ("step-00000002", "latest"):
        target = run / "checkpoints" / name
        shutil.rmtree(target) if target.is_dir() else target.unlink()
    for name in ("adapter", "merged"):
        shutil.rmtree(run / name)
    assert (run / "checkpoints" / "best").is_dir()
    planned = plan(run, "auto", settings(base, data, **WORSE).to_dict() | {"targets": WORSE["targets"]})
    assert planned.checkpoint is None and "starting from the beginning" in planned.notice
    again = run_finetuning(planned.config, planned.out, open_backend("cpu"))
    assert again.best_step == whole.best_step and losses(run) == losses(tmp_path / "whole")
    assert files(run, "merged") == files(tmp_path / "whole", "merged")
