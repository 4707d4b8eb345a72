"""A run that is stopped at any instant goes on to bit-equal losses."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import time
from pathlib import Path

import pytest
from runs import TINY, final_hashes, finish, losses, records, start, steps_done, wait_for_step

STEPS = 90
KILLS = 20
NO_ROOM = """
import resource, signal
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (12_000, 12_000))
"""


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> str:
    words = random.Random(3).choices("the of and a to in is that it for was on are as with".split(), k=4000)
    path = tmp_path_factory.mktemp("corpus") / "words.txt"
    path.write_text(" ".join(words))
    return str(path)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory, corpus: str) -> Path:
    """The same run, never interrupted."""
    run = tmp_path_factory.mktemp("whole") / "run"
    ended = finish("--out", str(run), "--corpus", corpus, "--steps", str(STEPS), *TINY)
    assert ended.returncode == 0, ended.stderr
    return run


def _inside_a_write(process: subprocess.Popen[bytes], run: Path) -> bool:
    """Waits until a checkpoint is being written; False where the run ended first."""
    while process.poll() is None:
        if any((run / "checkpoints").glob(".step-*.tmp")):
            return True
    return False


@pytest.mark.slow
def test_killed_twenty_times_the_losses_are_bit_equal(tmp_path: Path, corpus: str, whole: Path) -> None:
    run, draw, inside = tmp_path / "run", random.Random(5), 0
    options = ("--out", str(run), "--resume", "auto", "--corpus", corpus, "--steps", str(STEPS), *TINY)
    for kill in range(KILLS):
        process = start(*options)
        if kill % 3 == 0:
            inside += _inside_a_write(process, run)
        else:
            wait_for_step(process, run, steps_done(run) + draw.randrange(0, 5))
            began = time.monotonic()
            instant = draw.random() * 0.01
            while time.monotonic() - began < instant:
                pass
        process.send_signal(signal.SIGKILL)
        process.wait()
    ended = finish(*options)
    assert ended.returncode == 0, ended.stderr
    assert inside >= 3, "no kill met a checkpoint being written"
    assert losses(run) == losses(whole)
    assert final_hashes(run) == final_hashes(whole)


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_finishes_the_step_saves_and_sets_the_status(
    tmp_path: Path, corpus: str, whole: Path, number: signal.Signals, status: int
) -> None:
    run = tmp_path / "run"
    options = ("--out", str(run), "--corpus", corpus, "--steps", str(STEPS), *TINY)
    process = start(*options)
    wait_for_step(process, run, 4)
    process.send_signal(number)
    assert process.wait(60) == status
    stopped = steps_done(run)
    assert 4 <= stopped < STEPS
    assert (run / "checkpoints" / "latest").read_text().strip() == f"step-{stopped:08d}"
    ended = finish(*options, "--resume", "auto")
    assert ended.returncode == 0, ended.stderr
    assert losses(run) == losses(whole)
    assert final_hashes(run) == final_hashes(whole)


def test_a_full_disk_leaves_the_last_checkpoint_and_the_run_goes_on_later(
    tmp_path: Path, corpus: str, whole: Path
) -> None:
    run = tmp_path / "run"
    options = ("--corpus", corpus, *TINY)
    # The cosine's length is part of the losses, so that the shorter first part says all steps too and is stopped.
    process = start("--out", str(run), "--steps", str(STEPS), *options)
    wait_for_step(process, run, 5)
    process.send_signal(signal.SIGTERM)
    process.wait(60)
    kept = final_hashes(run)

    full = finish("--out", str(run), "--resume", "auto", "--steps", str(STEPS), *options, first=NO_ROOM)
    assert full.returncode == 1
    error = full.stderr.splitlines()[-1]
    assert error.startswith("error: ") and "earlier checkpoints are intact" in error
    assert final_hashes(run) == kept
    assert not list((run / "checkpoints").glob(".*"))
    ended = finish("--out", str(run), "--resume", "auto", "--steps", str(STEPS), *options)
    assert ended.returncode == 0, ended.stderr
    assert losses(run) == losses(whole)


def test_auto_passes_over_a_bad_checkpoint_and_says_so(tmp_path: Path, corpus: str, whole: Path) -> None:
    run = tmp_path / "run"
    options = ("--out", str(run), "--corpus", corpus, "--steps", str(STEPS), *TINY)
    process = start(*options)
    wait_for_step(process, run, 8)
    process.send_signal(signal.SIGTERM)
    process.wait(60)
    newest = run / "checkpoints" / (run / "checkpoints" / "latest").read_text().strip()
    data = bytearray((newest / "model.safetensors").read_bytes())
    data[-1] ^= 1
    (newest / "model.safetensors").write_bytes(data)
    ended = finish(*options, "--resume", "auto")
    assert ended.returncode == 0, ended.stderr
    assert f"skipped the bad checkpoint {newest}" in ended.stderr
    assert losses(run) == losses(whole)
    steps = [r["step"] for r in records(run)]
    assert steps == list(range(1, STEPS + 1))


def test_a_second_process_in_the_same_run_is_refused(tmp_path: Path, corpus: str) -> None:
    run = tmp_path / "run"
    options = ("--out", str(run), "--corpus", corpus, "--steps", "100000", *TINY)
    process = start(*options)
    try:
        wait_for_step(process, run, 1)
        second = finish(*options, "--resume", "auto")
        assert second.returncode == 2
        assert "another process is training there" in second.stderr
    finally:
        process.kill()
        process.wait()


def test_stderr_is_json_lines_and_stdout_one_object(tmp_path: Path, corpus: str) -> None:
    ended = finish("--out", str(tmp_path / "run"), "--corpus", corpus, "--steps", "9", *TINY)
    assert ended.returncode == 0, ended.stderr
    events = [json.loads(line)["event"] for line in ended.stderr.splitlines()]
    assert events[0] == "train_start" and events[-1] == "train_done"
    assert {"train_progress", "eval", "checkpoint_saved"} <= set(events)
    (line,) = ended.stdout.splitlines()
    result = json.loads(line)
    wanted = (
        "steps tokens_seen train_loss val_loss tokens_per_second seconds parameters backend device checkpoint sample"
    )
    assert set(wanted.split()) <= result.keys()
    assert result["steps"] == 9 and result["tokens_seen"] == 9 * 2 * 16
