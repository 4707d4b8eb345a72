from __future__ import annotations

from pathlib import Path

import pytest
from tuning_bases import examples, save_base, train_base, write_lines


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_base(tmp_path_factory.mktemp("base") / "base")


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_lines(tmp_path_factory.mktemp("data") / "examples.jsonl", examples())


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of `turret train` on reserved bytes."""
    return train_base(tmp_path_factory.mktemp("trained") / "run")
