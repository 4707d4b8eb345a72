"""A writer killed by the system, at any instant, leaves a good newest checkpoint behind."""

from __future__ import annotations

import random
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from turret.train.checkpoint import CheckpointContent, CheckpointStore

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="needs SIGKILL and fork")
WRITER = Path(__file__).with_name("killed_writer.py")


def whole(store: CheckpointStore) -> CheckpointContent:
    """The newest good checkpoint, checked to be of one step throughout; finished ones are never bad."""
    checkpoint, skipped = store.latest_good()
    assert skipped == ()
    assert checkpoint is not None
    for array in (*checkpoint.parameters.values(), *checkpoint.optimizer.values()):
        np.testing.assert_array_equal(array, checkpoint.step)
    return checkpoint


def test_killed_at_random_instants(tmp_path: Path) -> None:
    moments = random.Random(20240607)
    store = CheckpointStore(tmp_path, keep=2)
    safe, kills = 0, 0
    while kills < 10 or safe <= 10:
        kills += 1
        assert kills < 100, "so many writers together did not save ten checkpoints"
        writer = subprocess.Popen(
            [sys.executable, str(WRITER), "for-ever", str(tmp_path)], stdout=subprocess.PIPE, text=True
        )
        assert writer.stdout is not None
        lines = [writer.stdout.readline()]
        time.sleep(moments.uniform(0, 0.15))
        writer.kill()
        lines += writer.stdout.readlines()
        writer.wait()
        writer.stdout.close()
        safe = max(safe, int(lines[-1]) if lines[-1].endswith("\n") else int(lines[-2]))
        assert whole(store).step >= safe


@pytest.mark.parametrize("step", [3, 2], ids=["a-new-step", "the-newest-step-again"])
def test_killed_at_every_touch_of_the_file_system(tmp_path: Path, step: int) -> None:
    subprocess.run([sys.executable, str(WRITER), str(step), str(tmp_path)], check=True, timeout=120)
    runs = sorted(tmp_path.glob("run-*"))
    assert len(runs) > 25
    found = []
    for run in runs:
        store = CheckpointStore(run, keep=2)
        checkpoint = whole(store)
        found.append(checkpoint.step)
        store.save(replace(checkpoint, step=9, tokens_seen=90, position={"step": 9, "tokens_seen": 90}, parameters={}))
        kept = {path.name for path in store.folder.iterdir()}
        assert kept == {"latest", "step-00000009", f"step-{max(2, *store.steps()[:-1]):08d}"}
    assert set(found) == {2, step}
    assert found == sorted(found)
