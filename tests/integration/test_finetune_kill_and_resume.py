"""A fine-tuning run that is killed at any instant goes on to bit-equal losses and weights."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from runs import PATIENCE_S, losses, records, steps_done, wait_for_step
from safetensors.numpy import load_file
from tuning_bases import CONTEXT, examples, save_base, write_lines

STEPS = 40
KILLS = 8
CODE = "import sys\nfrom turret.cli import main\nsys.exit(main(['finetune', *sys.argv[1:]]))"
NO_ROOM = """
import resource, signal
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, ({0}, {0}))
"""
TINY = (
    *("--backend", "cpu", "--context", str(CONTEXT), "--batch", "2", "--accumulate", "2", "--steps", str(STEPS)),
    *("--lr", "0.02", "--val-fraction", "0.3", "--eval-every", "2", "--checkpoint-every", "3", "--log", "json"),
    *("--adapter-dropout", "0.2", "--dropout", "0.1", "--optimizer-page", "70", "--patience", "100"),
)


@pytest.fixture(scope="module")
def given(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, ...]:
    folder = tmp_path_factory.mktemp("given")
    base, data = save_base(folder / "base"), write_lines(folder / "data.jsonl", examples())
    return (str(base), "--data", str(data), *TINY)


def start(*options: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-c", CODE, *options],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        stdin=subprocess.DEVNULL,
    )


def finish(*options: str, first: str = "") -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", f"{first}\n{CODE}", *options]
    return subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S)


def bits(run: Path) -> dict[str, bytes]:
    """Every array of the last checkpoint and of the outputs."""
    last = (run / "checkpoints" / "latest").read_text().strip()
    found = [
        path for part in (f"checkpoints/{last}", "adapter", "merged") for path in (run / part).rglob("*.safetensors")
    ]
    return {f"{path.relative_to(run)} {name}": x.tobytes() for path in found for name, x in load_file(path).items()}


@pytest.mark.slow
@pytest.mark.parametrize("method", ["lora", "qlora", "full"])
def test_killed_many_times_the_losses_and_weights_are_bit_equal(
    tmp_path: Path, given: tuple[str, ...], method: str
) -> None:
    whole, run, draw = tmp_path / "whole", tmp_path / "run", random.Random(5)
    ended = finish(*given, "--out", str(whole), "--method", method)
    assert ended.returncode == 0, ended.stderr
    options = (*given, "--out", str(run), "--resume", "auto", "--method", method)
    kills = 0
    for kill in range(KILLS):
        process = start(*options)
        if kill % 2:
            inside = False
            while process.poll() is None and not inside:
                inside = any((run / "checkpoints").glob(".step-*.tmp")) or any(run.rglob(".saving-*"))
        else:
            wait_for_step(process, run, steps_done(run) + draw.randrange(1, 5))
        kills += process.poll() is None
        process.send_signal(signal.SIGKILL)
        process.wait()
    assert kills >= KILLS - 2
    ended = finish(*options)
    assert ended.returncode == 0, ended.stderr
    assert losses(run) == losses(whole)
    assert [record["step"] for record in records(run)] == list(range(1, STEPS + 1))
    assert bits(run) == bits(whole)
    leftovers = [str(path) for path in run.rglob(".*") if path.name not in (".lock",)]
    assert leftovers == []


@pytest.mark.parametrize(
    ("number", "status"), [pytest.param(signal.SIGINT, 130, marks=pytest.mark.slow), (signal.SIGTERM, 143)]
)
def test_a_signal_saves_and_sets_the_status(
    tmp_path: Path, given: tuple[str, ...], number: signal.Signals, status: int
) -> None:
    run = tmp_path / "run"
    process = start(*given, "--out", str(run), "--steps", "100000")
    wait_for_step(process, run, 4)
    process.send_signal(number)
    assert process.wait(60) == status
    assert (run / "checkpoints" / "latest").read_text().strip() == f"step-{steps_done(run):08d}"
    assert not (run / "adapter").exists() and not (run / "merged").exists()


@pytest.mark.slow
def test_a_full_disk_leaves_the_last_checkpoint_and_the_run_goes_on_later(
    tmp_path: Path, given: tuple[str, ...]
) -> None:
    whole, run = tmp_path / "whole", tmp_path / "run"
    assert finish(*given, "--out", str(whole)).returncode == 0
    process = start(*given, "--out", str(run))
    wait_for_step(process, run, 5)
    process.send_signal(signal.SIGTERM)
    process.wait(60)
    kept = bits(run)
    full = finish(*given, "--out", str(run), "--resume", "auto", first=NO_ROOM.format(3_000))
    assert full.returncode == 1
    assert full.stderr.splitlines()[-1].startswith("error: ")
    assert bits(run) == kept
    ended = finish(*given, "--out", str(run), "--resume", "auto")
    assert ended.returncode == 0, ended.stderr
    assert losses(run) == losses(whole) and bits(run) == bits(whole)


@pytest.mark.slow
def test_a_merged_model_that_finds_no_room_is_not_there_in_part(tmp_path: Path, given: tuple[str, ...]) -> None:
    """Adapter and checkpoints are smaller than what is refused."""
    run = tmp_path / "run"
    assert finish(*given, "--out", str(run), "--steps", "4").returncode == 0
    whole = bits(run)
    full = finish("--resume", str(run), first=NO_ROOM.format(20_000))
    assert full.returncode == 1
    assert "merged: could not be written" in full.stderr.splitlines()[-1]
    assert not (run / "merged").exists() and not list(run.glob(".saving-*"))
    again = finish("--resume", str(run))
    assert again.returncode == 0, again.stderr
    assert bits(run) == whole
