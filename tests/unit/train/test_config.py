"""The configuration of a run: strict, closed under its dictionary form, and what a resumed run may change."""

from __future__ import annotations

import math
from dataclasses import fields
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from turret.models import DecoderConfig, MiniConfig
from turret.spi import ConfigError
from turret.train import RunConfig
from turret.train.config import CHANGEABLE
from turret.train.values import shown


def test_the_dictionary_form_makes_the_same_configuration() -> None:
    config = RunConfig(model="mini", heads=4, grad_clip=math.inf, corpus=("a.txt", "b"), min_lr=1e-5)
    for made in (config, config.resolved()):
        assert RunConfig.from_values(made.to_dict(), source="test") == made


def test_resolving_fills_in_everything_and_changes_nothing_else() -> None:
    config = RunConfig(steps=50)
    resolved = config.resolved()
    assert (resolved.warmup, resolved.kv_heads, resolved.ff) == (5, 4, 512)
    assert resolved.min_lr == pytest.approx(1e-4)
    assert resolved.resolved() == resolved
    assert resolved.model_config().parameter_count() == config.model_config().parameter_count()


def test_each_family_has_its_tokenizer_and_sizes() -> None:
    assert isinstance(RunConfig().model_config(), DecoderConfig)
    assert RunConfig().byte_tokenizer.vocabulary_size == 256
    mini = RunConfig(model="mini").model_config()
    assert isinstance(mini, MiniConfig)
    assert (mini.vocabulary, mini.kv_heads, mini.feed_forward) == (262, 2, 352)


@pytest.mark.parametrize(
    "values",
    [
        {"steps": 0},
        {"steps": 10, "warmup": 10},
        {"lr": -1.0},
        {"lr": math.inf},
        {"min_lr": 2.0},
        {"schedule": "step"},
        {"model": "gpt"},
        {"corpus": ()},
        {"corpus": ("",)},
        {"width": 10, "heads": 4},
        {"model": "mini", "width": 12, "heads": 4},
        {"kv_heads": 3},
        {"grad_clip": -1.0},
        {"grad_clip": math.nan},
        {"val_fraction": 1.0},
        {"val_fraction": -0.1},
        {"log": "none"},
    ],
    ids=str,
)
def test_contradictions_are_refused_at_construction(values: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        RunConfig(**values)


HUGE = 10**400
UNWRITABLE = 10**5000


def short(values: object) -> str:
    """For test ids: Python writes no number of 5000 digits."""
    return shown(values)[:30]


@pytest.mark.parametrize(
    "values",
    [
        *({"optimizer_page": value} for value in (2.5, True, "7", [7])),
        *({"steps": value} for value in (2.0, True, "10", None)),
        *({"seed": value} for value in (0.5, False, "0")),
        *({"warmup": value} for value in (1.5, True)),
        *({name: ["x"]} for name in ("model", "schedule", "precision", "log", "attention", "backend")),
        {"activation_checkpointing": {"none"}},
        {"model": None},
        {"backend": 3},
        {"capture": 1},
        {"capture": "false"},
        *({"corpus": value} for value in ("abc", 5, (1,), None)),
        *({"lr": value} for value in ("1", True, None, HUGE)),
        *({"dropout": value} for value in ("0.1", True, None, HUGE)),
        *({"grad_clip": value} for value in ("inf", None, HUGE)),
        {"beta1": "0.9"},
        {"min_lr": math.nan, "schedule": "constant"},
    ],
    ids=short,
)
def test_the_constructor_refuses_what_is_of_another_type(values: dict[str, Any]) -> None:
    (name,) = [key for key in values if key != "schedule" or len(values) == 1]
    with pytest.raises(ConfigError, match=f"^RunConfig: {name} is .*; wanted (a |true or)"):
        RunConfig(**values)


WHOLE = [f.name for f in fields(RunConfig) if "int" in str(f.type)]
REAL = [f.name for f in fields(RunConfig) if "float" in str(f.type)]


@pytest.mark.parametrize("value", [HUGE, UNWRITABLE, -HUGE, -UNWRITABLE], ids=["1e400", "1e5000", "-1e400", "-1e5000"])
@pytest.mark.parametrize("name", [*WHOLE, *REAL])
@pytest.mark.parametrize("model", ["decoder", "mini"])
def test_a_number_beyond_reason_is_a_short_error(model: str, name: str, value: int) -> None:
    values = {"model": model, name: value}
    for read in (False, True):
        with pytest.raises(ConfigError, match=name.replace("_", ".")) as caught:
            RunConfig.from_values(values, source="run.toml") if read else RunConfig(**values)  # type: ignore[arg-type]
        assert len(str(caught.value)) < 200


def test_other_values_beyond_reason_are_short_errors_too() -> None:
    long = "x" * 5000
    for values in ({"model": long}, {"precision": long}, {"log": long}, {long: 1}, {"corpus": [UNWRITABLE]}):
        with pytest.raises(ConfigError) as caught:
            RunConfig.from_values(values, source="run.toml")
        assert len(str(caught.value)) < 1000
    with pytest.raises(ConfigError, match="keeps seed 0, got a int too long"):
        RunConfig().resumed({"seed": UNWRITABLE})


def test_whole_numbers_are_welcome_where_numbers_are() -> None:
    config = RunConfig(lr=1, min_lr=0, grad_clip=1, dropout=0, weight_decay=0)
    assert RunConfig.from_values(config.to_dict(), source="test") == config


json_values = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.sampled_from([HUGE, UNWRITABLE])
    | st.floats()
    | st.text()
    | st.lists(st.text(), max_size=2)
)


@given(
    st.dictionaries(st.sampled_from([f.name for f in fields(RunConfig)]) | st.text(max_size=6), json_values, max_size=3)
)
def test_any_plain_values_make_a_configuration_or_a_config_error(values: dict[str, Any]) -> None:
    try:
        config = RunConfig.from_values(values, source="fuzz")
    except ConfigError:
        return
    assert RunConfig.from_values(config.to_dict(), source="again") == config


def test_a_resumed_run_changes_only_what_does_not_decide_its_losses() -> None:
    config = RunConfig()
    assert config.resumed({"steps": 3000, "keep": 1}).steps == 3000
    assert config.resumed({"lr": config.lr}) == config
    for name in (f.name for f in fields(RunConfig)):
        if name in CHANGEABLE:
            continue
        with pytest.raises(ConfigError, match="keeps"):
            config.resumed({name: object()})
