"""A full disk, a real one, stops a save with a clear word and costs nothing that was saved before."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="needs file size limits")
SCRIPT = str(Path(__file__).with_name("full_disk.py"))


def outcome(command: list[str]) -> dict[str, Any]:
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    assert said["left"] == ["latest", "step-00000001"]
    assert said["latest"] == [1, 0]
    assert said["again"] == "step-00000003"
    assert not said["torn"]
    assert said["logged"] > 100
    assert "not logged" in said["metrics"]
    return dict(said)


def test_no_space_left_on_the_device(tmp_path: Path) -> None:
    mount = 'mount -t tmpfs -o size=1m tmpfs "$1"'
    private = ["unshare", "--map-root-user", "--mount", "sh", "-c"]
    if shutil.which("unshare") is None or subprocess.run([*private, mount, "-", tmp_path], stderr=-3).returncode:
        pytest.skip("no private mounts here")
    said = outcome([*private, f'{mount} && exec "$2" "$3" space "$1"', "-", str(tmp_path), sys.executable, SCRIPT])
    assert "the disk is full (about 2097192 bytes needed); earlier checkpoints are intact" in said["checkpoint"]
    assert re.search("No space left|the disk is full", said["metrics"])


def test_a_file_over_the_size_limit(tmp_path: Path) -> None:
    said = outcome([sys.executable, SCRIPT, "limit", str(tmp_path)])
    assert "could not be written ([Errno 27] File too large); earlier checkpoints are intact" in said["checkpoint"]
