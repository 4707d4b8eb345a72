"""What stands where a run's files belong and is no file is refused at once, never opened."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from turret.spi import ConfigError, DataError
from turret.train.lock import LOCK, hold
from turret.train.metrics import MetricsLog

pytestmark = pytest.mark.skipif(os.name == "nt", reason="no named pipes there")


def test_a_pipe_as_metrics_does_not_block(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "metrics.jsonl")
    with pytest.raises(DataError, match="not a regular file"):
        MetricsLog.resume(tmp_path / "metrics.jsonl", 3)


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir])
def test_a_lock_that_is_no_file_does_not_block(tmp_path: Path, make: type) -> None:
    make(tmp_path / LOCK)
    with pytest.raises(ConfigError, match="not a regular file"), hold(tmp_path):
        pass
