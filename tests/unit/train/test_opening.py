"""Whatever a user points at is opened as what it is, or refused with what to give instead."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from turret.models import build_model, model_config, save_pretrained
from turret.nn import PackedLinear
from turret.registry import OpenBackend, open_backend, use_backend
from turret.spi import CheckpointError, ConfigError
from turret.train.checkpoint import CheckpointContent, write_checkpoint
from turret.train.opening import open_model

SIZES: dict[str, Any] = {"vocabulary": 262, "context": 8, "width": 8, "heads": 2, "blocks": 1, "feed_forward": 8}


@pytest.fixture
def cpu() -> OpenBackend:
    return open_backend("cpu")


@pytest.fixture
def run(tmp_path: Path, cpu: OpenBackend) -> Path:
    """The folder of a run with one checkpoint."""
    with use_backend(cpu):
        arrays = build_model(model_config("mini", SIZES)).state_dict()
    content = CheckpointContent(
        model={"kind": "mini", "config": SIZES},
        train={},
        tokenizer="reserved-bytes",
        data={},
        step=3,
        tokens_seen=0,
        position={"step": 3, "tokens_seen": 0},
        random={},
        parameters=arrays,
        optimizer={"m": np.zeros(1, np.float32)},
    )
    write_checkpoint(tmp_path / "run" / "checkpoints", content)
    return tmp_path / "run"


def test_a_run_is_its_checkpoint_with_the_end_of_its_tokenizer(run: Path, cpu: OpenBackend) -> None:
    opened = open_model(run, cpu)
    assert (opened.form, opened.architecture, opened.template) == ("checkpoint", "mini", None)
    assert opened.source == run / "checkpoints" / "step-00000003"
    assert opened.eos_ids == (opened.tokenizer.eos_id,) == (1,)


def test_a_checkpoint_is_packed_if_asked(run: Path, cpu: OpenBackend) -> None:
    found = [any(isinstance(each, PackedLinear) for each in open_model(run, cpu).model.modules())]
    found.append(any(isinstance(each, PackedLinear) for each in open_model(run, cpu, quantize="nf4").model.modules()))
    assert found == [False, True]


def test_the_context_of_a_checkpoint_is_fixed(run: Path, cpu: OpenBackend) -> None:
    with pytest.raises(ConfigError, match="context is fixed in a checkpoint of turret; leave it out"):
        open_model(run, cpu, context=4)


def test_the_model_in_merged_goes_before_the_checkpoints(run: Path, cpu: OpenBackend) -> None:
    with use_backend(cpu):
        save_pretrained(build_model(model_config("mini", SIZES)), run / "merged")
    with pytest.raises(CheckpointError, match=r"merged: there is no tokenizer\.json beside the weights"):
        open_model(run, cpu)


def test_an_adapter_wants_its_base(tmp_path: Path, cpu: OpenBackend) -> None:
    (tmp_path / "adapter_config.json").write_text("{}")
    with pytest.raises(CheckpointError, match="an adapter without its base; give the base, and this folder as"):
        open_model(tmp_path, cpu)


@pytest.mark.parametrize("name", [".", "absent", "a\0b", "long" * 2_000, "file", "step-00000001"])
def test_what_is_no_model_is_refused(tmp_path: Path, cpu: OpenBackend, name: str) -> None:
    (tmp_path / "file").write_bytes(b"no model")
    (tmp_path / "step-00000001").mkdir()
    with pytest.raises(CheckpointError):
        open_model(tmp_path / name, cpu)
