"""Starting and watching `turret train` as users do: in a process of its own."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

TINY = (
    *("--backend", "cpu", "--layers", "1", "--heads", "2", "--width", "16", "--context", "16", "--batch", "2"),
    *("--warmup", "2", "--eval-every", "7", "--eval-batches", "2", "--checkpoint-every", "3", "--log", "json"),
)
PATIENCE_S = 120.0


def train_command(*options: str, first: str = "") -> list[str]:
    """`turret train`, in a process that runs the statements `first` before it."""
    code = f"{first}\nimport sys\nfrom turret.cli import main\nsys.exit(main(['train', *sys.argv[1:]]))"
    return [sys.executable, "-c", code, *options]


def start(*options: str) -> subprocess.Popen[bytes]:
    """A training process whose output nobody needs."""
    return subprocess.Popen(
        train_command(*options), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, stdin=subprocess.DEVNULL
    )


def finish(*options: str, first: str = "") -> subprocess.CompletedProcess[str]:
    """A training process run to its end."""
    return subprocess.run(train_command(*options, first=first), capture_output=True, text=True, timeout=PATIENCE_S)


def records(run: Path) -> list[dict[str, Any]]:
    """The whole lines of a run's metrics."""
    path = run / "metrics.jsonl"
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_bytes().splitlines(keepends=True) if line.endswith(b"\n")]


def losses(run: Path) -> list[tuple[int, float, float | None]]:
    """(step, loss, validation loss) of every step."""
    return [(r["step"], r["loss"], r.get("val_loss")) for r in records(run)]


def steps_done(run: Path) -> int:
    """The last step that the metrics know, read from the end of the file alone."""
    found = records(run)
    return found[-1]["step"] if found else 0


def wait_for_step(process: subprocess.Popen[bytes], run: Path, step: int) -> None:
    """Returns when the run has logged `step`, or has ended."""
    deadline = time.monotonic() + PATIENCE_S
    while process.poll() is None and steps_done(run) < step:
        assert time.monotonic() < deadline, f"no step {step} within {PATIENCE_S} s"


def final_hashes(run: Path) -> dict[str, str]:
    """SHA-256 of the arrays in the run's latest checkpoint."""
    name = (run / "checkpoints" / "latest").read_text().strip()
    manifest = json.loads((run / "checkpoints" / name / "manifest.json").read_text())
    return {file: entry["sha256"] for file, entry in manifest["files"].items()}
