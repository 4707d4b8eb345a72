"""A configuration is right, or refused with one line that says what to do."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from turret.spi import ConfigError
from turret.train.finetune import FinetuneConfig
from turret.train.finetune.config import CHANGEABLE, checked_values

PLAIN = FinetuneConfig(base="model", data="d.jsonl")


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"rank": 0}, "rank 0; wanted at least 1"),
        ({"rank": True}, "rank is True; wanted a whole number"),
        ({"alpha": 0.0}, "alpha 0.0; wanted a finite number above 0"),
        ({"alpha": math.nan}, "alpha is nan; wanted a number"),
        ({"adapter_dropout": 1.0}, "adapter dropout"),
        ({"dropout": -0.1}, "dropout"),
        ({"targets": ()}, "targets ()"),
        ({"targets": ("",)}, "targets ('',)"),
        ({"targets": 3}, "targets 3; wanted names or patterns of layers"),
        ({"method": "dora"}, "method 'dora'; wanted one of full, lora, qlora"),
        ({"output": "all"}, "output 'all'; wanted one of both, adapter, merged"),
        ({"method": "full", "output": "adapter"}, "output adapter with method full"),
        ({"patience": 0}, "patience 0; wanted at least 1"),
        ({"patience": 2, "val_fraction": 0.0}, "patience without validation"),
        ({"val_fraction": 1.0}, "val_fraction 1.0; wanted at least 0 and below 1"),
        ({"val_fraction": math.nan}, "val_fraction is nan; wanted a number"),
        ({"learn": "prompt"}, "learn 'prompt'; wanted one of response, all"),
        ({"long": "split"}, "long 'split'; wanted one of truncate, drop, refuse"),
        ({"skip_bad": -1}, "skip-bad -1; wanted at least 0"),
        ({"context": 0}, "context 0; wanted at least 1"),
        ({"batch": 0}, "batch 0"),
        ({"accumulate": 0}, "accumulate 0"),
        ({"steps": 0}, "steps 0"),
        ({"steps": 2**62}, "make steps, batch, accumulate or context smaller"),
        ({"optimizer_page": 0}, "optimizer-page 0"),
        ({"seed": -1}, "seed -1"),
        ({"seed": 2**64}, "wanted less than 2**64"),
        ({"lr": -1.0}, "lr"),
        ({"lr": math.inf}, "lr"),
        ({"grad_clip": math.nan}, "grad_clip is nan; wanted a number"),
        ({"weight_decay": math.inf}, "weight_decay inf"),
        ({"scales": "float16"}, "scales 'float16'"),
        ({"precision": "fp8"}, "precision 'fp8'"),
        ({"attention": "sparse"}, "sparse"),
        ({"base": ""}, "BASE model and --data"),
        ({"data": ""}, "BASE model and --data"),
        ({"steps": 10, "warmup": 11}, "warmup"),
    ],
)
def test_what_makes_no_run_is_refused_in_one_line(changed: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        FinetuneConfig(**{"base": "model", "data": "d.jsonl", **changed})
    assert said in str(caught.value) and "\n" not in str(caught.value) and len(str(caught.value)) < 300


def test_full_tuning_asks_for_no_sound_adapter() -> None:
    assert FinetuneConfig(base="m", data="d", method="full", alpha=-1.0).method == "full"


@pytest.mark.parametrize(("method", "lr"), [("full", 2e-5), ("lora", 2e-4), ("qlora", 2e-4)])
def test_rates_follow_from_the_method_unless_they_are_given(method: str, lr: float) -> None:
    plain = FinetuneConfig(base="m", data="d", method=method).resolved()
    assert (plain.lr, plain.min_lr, plain.warmup) == (lr, lr / 10, 20)
    given = FinetuneConfig(base="m", data="d", method=method, lr=0.5, min_lr=0.0, warmup=0, steps=7).resolved()
    assert (given.lr, given.min_lr, given.warmup) == (0.5, 0.0, 0)


@given(
    steps=st.integers(1, 10**6),
    clip=st.sampled_from([0.5, 1.0, math.inf]),
    targets=st.lists(st.sampled_from(["query", "blocks.*", "*"]), min_size=1, max_size=3),
    patience=st.one_of(st.none(), st.integers(1, 9)),
)
def test_it_comes_back_from_json(steps: int, clip: float, targets: list[str], patience: int | None) -> None:
    made = FinetuneConfig(
        base="m", data="d", steps=steps, grad_clip=clip, targets=tuple(targets), patience=patience
    ).resolved()
    assert FinetuneConfig.from_values(json.loads(json.dumps(made.to_dict())), source="file") == made


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"rnak": 4}, "did you mean 'rank'"),
        ({"rank": "four"}, "file: rank is 'four'; wanted a whole number"),
        ({"targets": 3}, "targets 3; wanted names or patterns of layers"),
        ({"targets": ["query", 3]}, "targets ['query', 3]; wanted names or patterns of layers"),
        ({"skip-bad": 1, "skip_bad": 2}, "'skip_bad' twice"),
        ({"base": "m"}, "file: no data"),
        ({"data": "d"}, "file: no base"),
    ],
)
def test_a_file_is_read_strictly(values: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        FinetuneConfig.from_values(values, source="file")
    assert said in str(caught.value)


def test_a_file_may_write_one_target_as_a_text() -> None:
    assert checked_values({"targets": "query", "grad-clip": "inf"}, source="f") == {
        "targets": ("query",),
        "grad_clip": math.inf,
    }


@pytest.mark.parametrize("key", sorted(set(PLAIN.to_dict()) - CHANGEABLE))
def test_a_resumed_run_keeps_what_decides_it(key: str) -> None:
    kept = PLAIN.resolved()
    assert kept.resumed({key: getattr(kept, key)}) == kept
    with pytest.raises(ConfigError, match=f"a resumed run keeps {key.replace('_', '-')} "):
        kept.resumed({key: "another"})


def test_a_resumed_run_may_change_where_and_how_long() -> None:
    changed = PLAIN.resolved().resumed({"steps": 999, "patience": 4, "backend": "minimal", "base": "moved"})
    assert (changed.steps, changed.patience, changed.backend, changed.base) == (999, 4, "minimal", "moved")
