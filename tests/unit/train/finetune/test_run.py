"""A run learns what its examples say, ends where validation says so, and takes the weights that were best."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from runs import losses
from tuning_bases import conversation, eos, save_base, template, tokenizer, tune, write_lines

from turret.generate import SamplingConfig, StopRules, generate_text
from turret.registry import open_backend
from turret.spi import ConfigError
from turret.tensor import no_grad
from turret.train.finetune import FinetuneResult
from turret.train.objective import LearnedTokens
from turret.train.opening import open_model
from turret.train.telemetry import TrainStart

WORSE: dict[str, Any] = {
    **{"steps": 12, "eval_every": 1, "checkpoint_every": 3, "lr": 0.6, "schedule": "constant", "warmup": 0},
    **{"val_fraction": 0.3, "targets": ("query", "value", "down"), "patience": 3},
}
"""Steps so large that validation soon gets worse."""


def best_of(run: Path) -> tuple[int, float]:
    """The first step with the least validation loss, from the metrics."""
    found = [(step, loss) for step, _, loss in losses(run) if loss is not None]
    return min(found, key=lambda each: each[1])


def measured(result: FinetuneResult) -> float:
    """The validation loss of the weights that the run ended with, once more."""
    objective, backend = LearnedTokens(), open_backend("cpu")
    total, weight = 0.0, 0.0
    with no_grad():
        for batch in result.data.validation:
            placed = objective.place(batch, backend)
            own = objective.weight(batch)
            total += own * float(objective.loss(objective.logits(result.base.model, placed), placed).item())
            weight += own
    return total / weight


@pytest.mark.parametrize("method", ["full", "lora", "qlora"])
def test_an_overfitted_model_gives_the_answers_and_their_end(tmp_path: Path, method: str) -> None:
    base = save_base(tmp_path / "base", width=32, sharp=30)
    talks = {"one": "red blue", "two": "green", "cat sky": "tree stone water fire"}
    data = write_lines(tmp_path / "d.jsonl", [conversation(*talk) for talk in talks.items()])
    result = tune(
        base,
        data,
        tmp_path / "run",
        **{"method": method, "steps": 60, "lr": 0.02, "val_fraction": 0.0, "targets": ("*",), "rank": 8},
        **{"eval_every": 1000, "checkpoint_every": 1000, "output": "merged"},
    )
    first, last = losses(tmp_path / "run")[0][1], losses(tmp_path / "run")[-1][1]
    assert last < 0.2 < 3 < first
    opened = open_model(Path(result.outputs["merged"]), open_backend("cpu"))
    assert opened.template is not None
    for prompt, answer in talks.items():
        ids = template().encode(tokenizer(), conversation(prompt, "")["messages"][:1], add_generation_prompt=True)
        told = generate_text(
            opened.model,
            opened.tokenizer,
            ids.tolist(),
            sampling=SamplingConfig(temperature=0),
            rules=StopRules(max_new_tokens=30, eos_ids=(eos(),)),
        )
        assert "".join(told) == answer


@pytest.mark.parametrize("method", ["lora", "full"])
def test_patience_ends_the_run_and_takes_the_best_weights(base: Path, data: Path, tmp_path: Path, method: str) -> None:
    changed = WORSE | {"method": method, "lr": 0.6 if method == "lora" else 0.1}
    result = tune(base, data, tmp_path / "run", **changed)
    step, loss = best_of(tmp_path / "run")
    assert result.done.reason == "no better validation loss" and result.done.step == step + 3 < 12
    assert (result.best_step, result.best_val_loss) == (step, loss)
    assert result.done.val_loss is not None and result.done.val_loss > loss + 0.01
    assert measured(result) == pytest.approx(loss, rel=1e-5)
    short = tune(base, data, tmp_path / "short", **(changed | {"steps": step, "patience": None, "output": "merged"}))
    one, other = (open_model(Path(each.outputs["merged"]), open_backend("cpu")).model for each in (result, short))
    assert all(np.array_equal(value, other.state_dict()[name]) for name, value in one.state_dict().items())


def test_without_patience_the_last_weights_are_taken(base: Path, data: Path, tmp_path: Path) -> None:
    result = tune(base, data, tmp_path / "run", **(WORSE | {"patience": None}))
    assert result.done.reason == "finished" and result.best_step == result.done.step == 12
    assert result.best_val_loss == result.done.val_loss == pytest.approx(measured(result), rel=1e-5)
    assert not (tmp_path / "run" / "checkpoints" / "best").exists()


def test_the_last_checkpoint_is_of_the_last_step_and_not_the_best(base: Path, data: Path, tmp_path: Path) -> None:
    from turret.train import read_checkpoint

    result = tune(base, data, tmp_path / "run", **WORSE)
    checkpoint = read_checkpoint(tmp_path / "run")
    assert checkpoint.step == result.done.step > result.best_step
    state = result.base.adapters.state_dict() if result.base.adapters else {}
    assert any(not np.array_equal(value, checkpoint.parameters[name]) for name, value in state.items())


def test_best_weights_stay_for_every_checkpoint_and_no_longer(base: Path, data: Path, tmp_path: Path) -> None:
    changed = {"steps": 12, "eval_every": 1, "checkpoint_every": 2, "keep": 2, "lr": 1e-3, "patience": 12}
    tune(base, data, tmp_path / "run", **changed)
    found = [(step, loss) for step, _, loss in losses(tmp_path / "run") if loss is not None]
    better = [step for step, loss in found if loss < min((x for n, x in found if n < step), default=math.inf)]
    assert len(better) > 8, "validation got better nearly all the time"
    kept = sorted((tmp_path / "run" / "checkpoints" / "best").iterdir())
    steps = [int(path.stem.removeprefix("step-")) for path in kept]
    # The last checkpoint is saved after the last best weights: those of the one before it are the oldest then.
    oldest = 8
    assert steps == [max(step for step in better if step <= oldest), *(step for step in better if step > oldest)]


def test_no_validation_is_no_validation_loss(base: Path, data: Path, tmp_path: Path) -> None:
    result = tune(base, data, tmp_path / "run", val_fraction=0.0)
    assert (result.done.val_loss, result.best_val_loss, result.best_step) == (None, None, 4)
    assert all(loss is None for _, _, loss in losses(tmp_path / "run"))


def test_equal_seeds_give_equal_bits_and_others_do_not(base: Path, data: Path, tmp_path: Path) -> None:
    changed = {"adapter_dropout": 0.3, "dropout": 0.1, "accumulate": 2, "batch": 2}
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        tune(base, data, tmp_path / name, seed=seed, **changed)
    a, b, c = (losses(tmp_path / name) for name in "abc")
    assert a == b != c


@pytest.mark.parametrize("method", ["lora", "qlora", "full"])
def test_saving_memory_changes_no_bit(base: Path, data: Path, tmp_path: Path, method: str) -> None:
    common: dict[str, Any] = {"method": method, "adapter_dropout": 0.3, "dropout": 0.1, "lr": 0.01}
    tune(base, data, tmp_path / "plain", **common)
    tune(base, data, tmp_path / "saving", activation_checkpointing="block", optimizer_page=50, **common)
    assert losses(tmp_path / "plain") == losses(tmp_path / "saving")


def test_dropout_of_adapters_works_in_training_and_not_in_validation(base: Path, data: Path, tmp_path: Path) -> None:
    """b is 0 at first, so that the first loss is that of the base all the same."""
    for name, rate in (("none", 0.0), ("some", 0.5)):
        tune(base, data, tmp_path / name, adapter_dropout=rate, lr=0.05, eval_every=1, steps=3)
    plain, dropped = losses(tmp_path / "none"), losses(tmp_path / "some")
    assert plain[0][1] == dropped[0][1] and plain[2][1] != dropped[2][1]
    result = tune(base, data, tmp_path / "again", adapter_dropout=0.5, lr=0.05, eval_every=1, steps=3)
    assert result.done.val_loss == pytest.approx(measured(result), rel=1e-5)


def test_a_folder_with_something_in_it_is_no_new_run(base: Path, data: Path, tmp_path: Path) -> None:
    from turret.train.finetune.resume import plan

    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(ConfigError, match="is not empty; choose a new folder"):
        plan(tmp_path, None, {"base": str(base), "data": str(data)})


def test_a_rate_that_destroys_the_model_leaves_the_last_checkpoint(base: Path, data: Path, tmp_path: Path) -> None:
    from turret.spi import NonFiniteError
    from turret.train import read_checkpoint

    with pytest.raises(NonFiniteError) as caught:
        tune(base, data, tmp_path / "run", method="full", lr=1e30, schedule="constant", warmup=0, steps=50)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "run" / "merged").exists()
    if (tmp_path / "run" / "checkpoints").exists():
        assert all(np.isfinite(value).all() for value in read_checkpoint(tmp_path / "run").parameters.values())


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["tpu:cpu", "metal:cpu"])
@pytest.mark.parametrize("method", ["lora", "qlora"])
def test_compiled_backends_learn_the_same(base: Path, data: Path, tmp_path: Path, method: str, backend: str) -> None:
    common: dict[str, Any] = {"method": method, "steps": 8, "lr": 0.02, "adapter_dropout": 0.2, "batch": 2}
    tune(base, data, tmp_path / "cpu", **common)
    tune(base, data, tmp_path / "compiled", backend=backend, **common)
    for (_, a, val_a), (_, b, val_b) in zip(losses(tmp_path / "cpu"), losses(tmp_path / "compiled"), strict=True):
        assert b == pytest.approx(a, rel=1e-3)
        assert (val_a is None and val_b is None) or val_b == pytest.approx(val_a, rel=1e-3)


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["bfloat16", "float16"])
def test_half_the_bits_learn_nearly_the_same(base: Path, data: Path, tmp_path: Path, precision: str) -> None:
    common: dict[str, Any] = {"method": "qlora", "steps": 8, "lr": 0.02, "accumulate": 2, "adapter_dropout": 0.2}
    tune(base, data, tmp_path / "whole", **common)
    result = tune(base, data, tmp_path / "half", backend="tpu:cpu", precision=precision, **common)
    assert all(value.dtype == np.float32 for value in (result.base.adapters or {}) and result.base.state().values())
    for (_, a, _), (_, b, _) in zip(losses(tmp_path / "whole"), losses(tmp_path / "half"), strict=True):
        assert b == pytest.approx(a, rel=0.03)
    assert losses(tmp_path / "half")[-1][1] < losses(tmp_path / "half")[0][1]


def test_a_run_tells_all_parameters_of_its_model_packed_or_not(base: Path, data: Path, tmp_path: Path) -> None:
    told: list[int] = []

    class Begun:
        def on_start(self, event: TrainStart) -> None:
            told.append(event.parameters)

        def on_step(self, event: object) -> None: ...

        on_eval = on_checkpoint = on_done = on_step

    for method in ("lora", "qlora"):
        tune(base, data, tmp_path / method, method=method, steps=1, observers=[Begun()])
    count = open_model(base, open_backend("cpu")).model.parameter_count()
    assert told == [count, count]
