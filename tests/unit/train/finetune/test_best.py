"""The best weights are those of the step that is asked for, or none."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
from tuning_bases import settings

from turret.registry import open_backend
from turret.spi import CheckpointError
from turret.train.finetune.best import BestWeights
from turret.train.finetune.tuned_base import Base, open_base


@pytest.fixture
def tuned(base: Path, data: Path) -> Base:
    return open_base(settings(base, data), open_backend("cpu"))


def learn(base: Base, value: float) -> None:
    base.load({name: np.full_like(array, value) for name, array in base.state().items()})


def test_a_step_comes_back_as_it_was(tuned: Base, tmp_path: Path) -> None:
    best = BestWeights(tmp_path, tuned)
    for step in (2, 4):
        learn(tuned, step)
        best.keep(step)
    assert BestWeights(tmp_path / "none", tuned).fetch(2, tmp_path)
    assert not BestWeights(tmp_path / "none", tuned).fetch(3, tmp_path)
    best.rewind(9)
    with pytest.raises(CheckpointError, match=r"step-00000003\.safetensors is not there"):
        best.take(3)
    assert all((array == 4).all() for array in tuned.state().values())
    BestWeights(tmp_path / "none", tuned).take(2)
    assert all((array == 2).all() for array in tuned.state().values())


def test_steps_that_a_run_has_not_seen_are_gone(tuned: Base, tmp_path: Path) -> None:
    best = BestWeights(tmp_path, tuned)
    best.rewind(0)
    for step in (2, 5):
        (tmp_path / "checkpoints" / f"step-{step:08d}").mkdir(parents=True)
        best.keep(step)
    (best.folder / ".saving-killed").mkdir()
    best.rewind(3)
    assert [path.name for path in best.folder.iterdir()] == ["step-00000002.safetensors"]


@pytest.mark.parametrize("damage", ["another step", "cut", "no arrays"])
def test_a_damaged_file_changes_nothing(tuned: Base, tmp_path: Path, damage: str) -> None:
    best = BestWeights(tmp_path, tuned)
    best.keep(2)
    path = best.folder / "step-00000002.safetensors"
    if damage == "another step":
        shutil.copy(path, best.folder / "step-00000004.safetensors")
    else:
        path.write_bytes(path.read_bytes()[:-9] if damage == "cut" else b"")
    learn(tuned, 7)
    with pytest.raises(CheckpointError):
        best.take(4 if damage == "another step" else 2)
    assert all((array == 7).all() for array in tuned.state().values())


def test_a_folder_that_cannot_be_written_is_named(tuned: Base, tmp_path: Path) -> None:
    (tmp_path / "checkpoints").write_text("a file")
    with pytest.raises(CheckpointError, match="cannot be written"):
        BestWeights(tmp_path, tuned).keep(1)
