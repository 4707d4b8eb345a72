"""The metrics log has every step once, whatever a killed run left at its end."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from turret.spi import DataError, NonFiniteError
from turret.train.metrics import MetricsLog, StepMetrics, read_metrics


def record(step: int, val_loss: float | None = None) -> StepMetrics:
    return StepMetrics(
        step=step,
        loss=5.5 / step,
        gradient_norm=0.1 + 0.2,
        clip_scale=1.0,
        learning_rate=1e-3 / 3,
        tokens_seen=step * 768,
        seconds=step * 0.25,
        val_loss=val_loss,
    )


def written(path: Path, steps: int) -> list[StepMetrics]:
    records = [record(step, 2.5 if step % 2 == 0 else None) for step in range(1, steps + 1)]
    log = MetricsLog(path)
    for one in records:
        log.append(one)
    log.close()
    return records


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "run" / "metrics.jsonl"


def test_records_come_back_exactly(path: Path) -> None:
    assert written(path, 4) == read_metrics(path)


def test_each_line_is_one_json_object_with_the_documented_keys(path: Path) -> None:
    written(path, 2)
    first, second = (json.loads(line) for line in path.read_text().splitlines())
    keys = ["step", "loss", "gradient_norm", "clip_scale", "learning_rate", "tokens_seen", "seconds"]
    assert list(first) == keys
    assert list(second) == [*keys, "val_loss"]


def test_a_record_is_on_file_when_append_returns(path: Path) -> None:
    log = MetricsLog(path)
    for step in (1, 2):
        log.append(record(step))
        assert len(path.read_bytes().splitlines()) == step
    log.sync()
    log.close()


def test_a_killed_process_loses_nothing_it_appended(path: Path) -> None:
    code = (
        "import os, signal, sys; from pathlib import Path; from turret.train.metrics import *\n"
        "log = MetricsLog(Path(sys.argv[1]))\n"
        "for step in range(1, 8): log.append(StepMetrics(step=step, loss=1, gradient_norm=1, clip_scale=1, "
        "learning_rate=1, tokens_seen=1, seconds=1))\n"
        "os.kill(os.getpid(), signal.SIGKILL)"
    )
    done = subprocess.run([sys.executable, "-c", code, str(path)], timeout=60)
    assert done.returncode == -signal.SIGKILL
    assert [one.step for one in read_metrics(path)] == list(range(1, 8))


def test_a_log_cut_at_any_byte_is_read_and_resumed(path: Path) -> None:
    records = written(path, 3)
    data = path.read_bytes()
    ends = [index for index, byte in enumerate(data) if byte == 10]
    for length in sorted({*range(0, len(data), 11), *ends, *(end + 1 for end in ends)}):
        path.write_bytes(data[:length])
        whole = records[: sum(end <= length for end in ends)]
        assert read_metrics(path) == whole
        log = MetricsLog.resume(path, 3)
        assert log.last == (whole[-1] if whole else None)
        log.append(record(4))
        log.close()
        assert read_metrics(path) == [*whole, record(4)]


def test_resuming_drops_what_came_after_the_checkpoint(path: Path) -> None:
    records = written(path, 6)
    log = MetricsLog.resume(path, 4)
    assert log.seconds == records[3].seconds
    log.append(record(5))
    log.close()
    assert [one.step for one in read_metrics(path)] == [1, 2, 3, 4, 5]
    assert os.listdir(path.parent) == ["metrics.jsonl"]


@pytest.mark.parametrize("existing", [None, b"", b'{"step": 1, "lo', b"\0" * 100])
def test_resuming_without_a_whole_record_starts_anew(path: Path, existing: bytes | None) -> None:
    if existing is not None:
        path.parent.mkdir()
        path.write_bytes(existing)
    log = MetricsLog.resume(path, 100)
    assert (log.last, log.seconds) == (None, 0.0)
    log.append(record(101))
    log.close()
    assert [one.step for one in read_metrics(path)] == [101]


def test_a_new_log_does_not_continue_an_old_one(path: Path) -> None:
    written(path, 1)
    with pytest.raises(DataError, match=r"metrics\.jsonl: has records already; resume that run"):
        MetricsLog(path)


@pytest.mark.parametrize("step", [1, 2])
def test_no_step_is_logged_twice(path: Path, step: int) -> None:
    log = MetricsLog(path)
    log.append(record(2))
    with pytest.raises(DataError, match=f"step {step} after step 2"):
        log.append(record(step))
    log.close()
    assert read_metrics(path) == [record(2)]


@pytest.mark.parametrize("name", ["loss", "gradient_norm", "val_loss"])
def test_a_number_that_is_none_is_refused_by_name(path: Path, name: str) -> None:
    log = MetricsLog(path)
    with pytest.raises(NonFiniteError, match=f"step 7: {name} is nan"):
        log.append(replace(record(7), **{name: float("nan")}))
    log.close()
    assert path.read_bytes() == b""


GOOD = json.loads(record(2, 1.0).to_json())


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "Expecting"),
        ("[]", "list instead of an object"),
        ("[" * 100_000, "nested too deeply"),
        (json.dumps({**GOOD, "more": 1}), "unknown key 'more'"),
        (json.dumps({name: value for name, value in GOOD.items() if name != "loss"}), "no 'loss'"),
        (json.dumps({name: value for name, value in GOOD.items() if name != "clip_scale"}), "no 'clip_scale'"),
        (
            json.dumps({name: value for name, value in GOOD.items() if "_" not in name or name == "val_loss"}),
            "no 'clip_sca",
        ),
        (json.dumps({**GOOD, "step": 2.0}), "step is 2.0, not a whole number"),
        (json.dumps({**GOOD, "step": True}), "step is True"),
        (json.dumps({**GOOD, "loss": "1"}), "loss is '1', not a finite number"),
        (json.dumps({**GOOD, "loss": float("nan")}), "loss is nan"),
        (json.dumps({**GOOD, "loss": 10**400}), "loss is 1000"),
        (json.dumps({**GOOD, "val_loss": None}), "val_loss is None"),
        (json.dumps({**GOOD, "step": 1}), "step 1 follows step 1"),
        ("", "Expecting value"),
        (json.dumps({**GOOD, "loss_scale": -3}), "loss_scale is -3, not a number above 0"),
        (json.dumps({**GOOD, "loss_scale": 0.0}), "loss_scale is 0.0, not a number above 0"),
    ],
    ids=range(17),
)
def test_a_malformed_line_before_the_last_is_named(path: Path, line: str, message: str) -> None:
    path.parent.mkdir()
    lines = [record(1).to_json(), line, record(3).to_json(), ""]
    path.write_text("\n".join(lines))
    before = path.read_bytes()
    with pytest.raises(DataError, match=f"metrics.jsonl, line 2: .*{message}"):
        read_metrics(path)
    with pytest.raises(DataError, match="line 2"):
        MetricsLog.resume(path, 3)
    assert path.read_bytes() == before


def test_a_skipped_step_is_read_back_without_a_norm(path: Path) -> None:
    skipped = replace(record(1), gradient_norm=None, clip_scale=None, loss_scale=65536.0)
    log = MetricsLog(path)
    log.append(skipped)
    log.close()
    assert "gradient_norm" not in path.read_text()
    assert read_metrics(path) == [skipped]


@settings(max_examples=200, deadline=None, derandomize=True)
@given(st.binary(max_size=60) | st.binary(max_size=20).map(lambda tail: record(1).to_json().encode() + b"\n" + tail))
def test_any_bytes_are_read_or_refused(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    path = tmp_path_factory.getbasetemp() / "any.jsonl"
    path.write_bytes(data)
    try:
        assert read_metrics(path) in ([], [record(1)])
    except DataError as error:
        assert "any.jsonl, line" in str(error)


def test_a_missing_or_unwritable_log_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="nowhere: cannot be read"):
        read_metrics(tmp_path / "nowhere")
    (tmp_path / "file").write_text("")
    for attempt in (MetricsLog, lambda path: MetricsLog.resume(path, 1)):
        with pytest.raises(DataError, match="file"):
            attempt(tmp_path / "file" / "metrics.jsonl")
