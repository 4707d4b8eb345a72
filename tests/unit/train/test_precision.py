"""The loss scale of float16, what a device must have for mixed precision, and steps that overflow."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from turret.data import BatchSampler, ByteTokenizer, Split, open_corpus
from turret.models import LanguageModel, MiniConfig, build_model
from turret.optim import Adam, constant
from turret.registry import OpenBackend, open_backend, use_backend
from turret.spi import CheckpointError, ConfigError, DType, NonFiniteError
from turret.train import Engine
from turret.train.engine import metrics_of
from turret.train.objective import NextToken
from turret.train.precision import LossScale, compute_format

CONTEXT = 8


def test_the_scale_halves_at_an_overflow_and_doubles_after_patience() -> None:
    scale = LossScale(1024.0, patience=3)
    assert scale.overflowed() and scale.value == 512.0
    for _ in range(3):
        scale.passed()
    assert (scale.value, scale.good, scale.skipped) == (1024.0, 0, 1)
    scale.passed()
    scale.overflowed()
    assert (scale.value, scale.good, scale.skipped) == (512.0, 0, 2)


def test_the_scale_stays_between_one_and_its_greatest() -> None:
    low, high = LossScale(1.0), LossScale(LossScale.GREATEST, patience=1)
    high.passed()
    assert not low.overflowed() and low.skipped == 0
    assert high.value == LossScale.GREATEST


@pytest.mark.parametrize("value", [0.0, 0.5, 3.0, -2.0, math.inf, math.nan, 2.0**25])
def test_a_scale_that_is_no_power_of_two_in_range_is_refused(value: float) -> None:
    with pytest.raises(ConfigError, match="power of two"):
        LossScale(value)


@pytest.mark.parametrize("value", ["a", True, None, [1.0], 10**400, 10**5000], ids=lambda value: type(value).__name__)
def test_a_scale_that_is_no_number_is_refused(value: Any) -> None:
    with pytest.raises(ConfigError, match=r"^loss scale .*power of two") as caught:
        LossScale(value)
    assert len(str(caught.value)) < 160


@pytest.mark.parametrize("patience", ["x", True, 2.5, None, 0, -(10**5000)], ids=lambda value: type(value).__name__)
def test_a_patience_that_is_no_count_is_refused(patience: Any) -> None:
    with pytest.raises(ConfigError, match=r"patience .*; wanted a whole number"):
        LossScale(patience=patience)


def test_a_scale_given_as_a_whole_number_survives_its_checkpoint() -> None:
    scale, again = LossScale(1024), LossScale()
    again.load(scale.state(), step=0)
    assert again.value == 1024.0


@pytest.mark.parametrize(
    "change",
    [{"good": True}, {"skipped": False}, {"value": True}, {"good": 6, "skipped": 5}, {"good": 11}, {"good": 10**5000}],
    ids=lambda change: "-".join(change),
)
def test_a_state_that_no_run_can_be_in_is_refused(change: dict[str, object]) -> None:
    scale = LossScale(64.0)
    with pytest.raises(CheckpointError, match="at step 10"):
        scale.load({**LossScale(128.0).state(), **change}, step=10)
    assert scale.state() == LossScale(64.0).state()


def test_every_state_that_a_run_passes_through_is_taken() -> None:
    scale, draw = LossScale(2.0**10, patience=3), np.random.default_rng(0)
    for step in range(1, 60):
        if draw.random() < 0.7 or not scale.overflowed():
            scale.passed()
        again = LossScale(patience=3)
        again.load(scale.state(), step=step)
        assert again.state() == scale.state()


@pytest.mark.parametrize(
    "change",
    [{"value": 3.0}, {"value": 2}, {"good": -1}, {"good": 2000}, {"skipped": 11}, {"skipped": 1.0}, {"value": None}],
)
def test_a_damaged_state_of_the_scale_is_refused(change: dict[str, object]) -> None:
    scale = LossScale(64.0)
    state = LossScale(128.0).state()
    with pytest.raises(CheckpointError, match="at step 10"):
        scale.load({**state, **change}, step=10)
    assert scale.value == 64.0
    scale.load(state, step=10)
    assert scale.value == 128.0


def test_a_device_that_only_stores_float16_is_refused_with_the_reason() -> None:
    with pytest.raises(ConfigError, match=r"no arithmetic in float16.*slower than float32; choose float32$"):
        compute_format("float16", open_backend("cpu"))


def test_a_device_without_the_format_is_refused_with_what_it_has() -> None:
    with pytest.raises(ConfigError, match=r"has no bfloat16; choose float32$"):
        compute_format("bfloat16", open_backend("cpu"))
    with pytest.raises(ConfigError, match=r"has no bfloat16; choose float32, float16$"):
        compute_format("bfloat16", open_backend("minimal"))
    with pytest.raises(ConfigError, match="wanted one of float32, bfloat16, float16"):
        compute_format("fp8", open_backend("cpu"))


@pytest.mark.parametrize("word", [["float16"], {"float16"}, None, 16, True, "x" * 5000], ids=lambda word: str(word)[:9])
def test_a_precision_that_is_no_word_is_refused(word: Any) -> None:
    with pytest.raises(ConfigError, match="wanted one of float32, bfloat16, float16") as caught:
        compute_format(word, open_backend("cpu"))
    assert len(str(caught.value)) < 160


@pytest.mark.parametrize(("word", "fault"), [("float16", "no arithmetic in float16"), ("bfloat16", "has no bfloat16")])
def test_a_resumed_run_is_told_to_change_what_it_may(word: str, fault: str) -> None:
    with pytest.raises(
        ConfigError, match=f"{fault}.*; a resumed run keeps its precision.*backend.* in {word}$"
    ) as caught:
        compute_format(word, open_backend("cpu"), resumed=True)
    assert "choose float32" not in str(caught.value)
    assert compute_format("float16", open_backend("minimal"), resumed=True) == "float16"


def test_a_device_that_has_it_gets_it() -> None:
    assert compute_format("float32", open_backend("cpu")) is None
    assert compute_format("float16", open_backend("minimal")) == "float16"
    assert compute_format("bfloat16", open_backend("tpu:cpu")) == "bfloat16"


class Made:
    """An engine in float16 over a small text."""

    def __init__(self, folder: Path, scale: LossScale, *, accumulate: int = 1, dtype: DType = "float16") -> None:
        path = folder / "text.txt"
        if not path.exists():
            path.write_text("a stitch in time saves nine. " * 40)
        corpus = open_corpus([path])
        split = Split.cut(len(corpus), val_fraction=0.2, context=CONTEXT)
        sampler = BatchSampler(corpus, ByteTokenizer(), split.train, CONTEXT, 4, 0)
        config = MiniConfig(vocabulary=256, context=CONTEXT, width=16, heads=2, kv_heads=1, blocks=1, feed_forward=32)
        self.model: LanguageModel = build_model(config, seed=0)
        self.optimizer = Adam(self.model.named_parameters(), lr=1e-2)
        self.engine = Engine(
            self.model,
            self.optimizer,
            sampler,
            constant(1e-2),
            objective=NextToken(),
            accumulate=accumulate,
            precision=dtype,
            scale=scale,
        )

    def bytes(self) -> list[bytes]:
        moments = self.optimizer.state_dict().values()
        return [x.tobytes() for x in (*self.model.state_dict().values(), *moments)]


SPECS = [("minimal", 1), ("minimal", 2), ("tpu:cpu", 1), ("metal:cpu", 2)]


@pytest.mark.parametrize(("spec", "accumulate"), SPECS)
def test_an_overflow_changes_nothing_and_is_counted(tmp_path: Path, spec: str, accumulate: int) -> None:
    with use_backend(spec):
        made = Made(tmp_path, LossScale(LossScale.GREATEST), accumulate=accumulate)
        before = made.bytes()
        result = made.engine.step(1)
        assert result.stats is None and result.loss_scale == LossScale.GREATEST
        assert made.bytes() == before
        assert made.optimizer.steps == 0
        assert made.engine.scale is not None
        assert (made.engine.scale.value, made.engine.scale.skipped) == (LossScale.GREATEST / 2, 1)
        record = metrics_of(1, result, tokens_per_step=32, seconds=0.0, val_loss=None)
        assert (record.gradient_norm, record.clip_scale) == (None, None)
        assert type(record).from_json(record.to_json().encode()) == record


@pytest.mark.parametrize(("spec", "accumulate"), SPECS)
def test_training_goes_on_once_the_scale_fits(tmp_path: Path, spec: str, accumulate: int) -> None:
    with use_backend(spec):
        made = Made(tmp_path, LossScale(LossScale.GREATEST), accumulate=accumulate)
        results = [made.engine.step(n) for n in range(1, 41)]
        committed = [r for r in results if r.stats is not None]
        assert made.engine.scale is not None
        assert 0 < made.engine.scale.skipped == 40 - len(committed) < 20
        assert made.optimizer.steps == len(committed)
        assert committed[-1].loss < committed[0].loss - 1


@pytest.mark.parametrize("accumulate", [1, 2])
def test_the_scale_leaves_no_trace_in_the_gradients(tmp_path: Path, accumulate: int) -> None:
    """Powers of two: as long as nothing is subnormal or overflows, another scale gives nearly the same step."""
    with use_backend("minimal"):
        norms = []
        for value in (256.0, 1024.0):
            made = Made(tmp_path, LossScale(value), accumulate=accumulate)
            result = made.engine.step(1)
            assert result.stats is not None
            norms.append(result.stats.gradient_norm)
    assert norms[0] == pytest.approx(norms[1], rel=1e-3)


def test_gradients_too_small_for_float16_survive_with_the_scale(tmp_path: Path) -> None:
    with use_backend("minimal"):
        lost, kept = (Made(tmp_path, LossScale(value)) for value in (1.0, 2.0**10))
        zeros = []
        for made in (lost, kept):
            made.engine.step(1)
            first = [x for name, x in made.optimizer.state_dict().items() if name.startswith("first.blocks")]
            zeros.append(sum(int((x == 0).sum()) for x in first))
    assert zeros[1] < zeros[0]


class Stuck(LossScale):
    """Its least value is the greatest, where gradients overflow."""

    LEAST = LossScale.GREATEST


def test_at_the_least_scale_an_overflow_is_an_error(tmp_path: Path) -> None:
    with use_backend("minimal"):
        made = Made(tmp_path, Stuck(Stuck.LEAST))
        before = made.bytes()
        with pytest.raises(NonFiniteError, match="gradient"):
            made.engine.step(1)
        assert made.bytes() == before
        assert made.engine.scale is not None and made.engine.scale.skipped == 0


def test_a_loss_that_is_not_finite_is_an_error_and_not_an_overflow(tmp_path: Path) -> None:
    with use_backend("minimal"):
        made = Made(tmp_path, LossScale())
        weight = dict(made.model.named_parameters())["token_embedding.weight"]
        weight.assign(weight.backend.tools.storage.from_host(np.full(weight.shape, np.nan, np.float32)))
        with pytest.raises(NonFiniteError, match="the loss is nan"):
            made.engine.step(1)
        assert made.engine.scale is not None and made.engine.scale.skipped == 0


def test_storage_only_formats_are_formats_of_the_device() -> None:
    for spec in ("cpu", "minimal", "metal:cpu", "tpu:cpu"):
        opened: OpenBackend = open_backend(spec)
        device = opened.tools.storage.device()
        assert device.storage_only <= device.dtypes
        assert "float32" not in device.storage_only
