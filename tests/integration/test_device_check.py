from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from importlib import import_module
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "scripts" / "device_check.sh"
PATIENCE_S = 120.0


@pytest.fixture(autouse=True)
def _path(monkeypatch: pytest.MonkeyPatch) -> None:
    for folder in ("benchmarks", "scripts"):
        monkeypatch.syspath_prepend(str(ROOT / folder))


def module(name: str) -> Any:
    return import_module(f"device_check.{name}")


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHON": sys.executable}


def check(*words: str, timeout: float = PATIENCE_S) -> subprocess.CompletedProcess[str]:
    """The script as people start it."""
    return subprocess.run([SCRIPT, *words], capture_output=True, text=True, timeout=timeout, env=environment())


def read(path: Path) -> dict[str, Any]:
    """The file, after it was found to be as it is described."""
    document = json.loads(path.read_text())
    assert list(module("validate").problems(document, module("schema").DeviceCheck)) == []
    return dict(document)


# Parts that end badly


@pytest.fixture
def parts(tmp_path: Path) -> dict[str, str]:
    """An environment whose device_check has four more parts."""
    shutil.copytree(ROOT / "scripts" / "device_check", tmp_path / "device_check")
    for name, body in {
        "hangs": "    tell.put(device='seen')\n    tell.say('before')\n    time.sleep(600)",
        "crashes": "    tell.put(device='seen')\n    os.kill(os.getpid(), 11)",
        "raises": "    tell.put(device='seen')\n    raise ValueError('it went wrong')",
        "ends": "    print('noise')\n    tell.put(device='seen')\n    tell.end([])",
        "refuses": "    tell.unusable('no such thing')",
    }.items():
        text = f"import os, time\n\n\ndef run(request, tell):\n{body}\n"
        (tmp_path / "device_check" / f"{name}.py").write_text(text)
    return {**os.environ, "PYTHONPATH": str(tmp_path)}


def outcome(part: str, variables: dict[str, str], *, limit_s: float = 60.0) -> tuple[dict[str, Any], list[str]]:
    request = module("request").Request(
        part=part, spec="cpu", rehearsal=True, emulated=False, limit_s=limit_s, jobs=1, every=1
    )
    found: dict[str, Any] = {"status": "skipped", "reason": "not begun", "device": None}
    said: list[str] = []
    module("process").run(request, found, variables, said.append)
    return found, said


def test_a_part_that_ends_keeps_what_it_told(parts: dict[str, str]) -> None:
    found, _ = outcome("ends", parts)
    assert (found["status"], found["reason"], found["device"]) == ("passed", "", "seen")


def test_a_part_that_crashes_is_one_that_failed(parts: dict[str, str]) -> None:
    found, _ = outcome("crashes", parts)
    assert (found["status"], found["device"]) == ("failed", "seen")
    assert "was killed by SIGSEGV" in found["reason"]


def test_a_part_that_raises_says_what(parts: dict[str, str]) -> None:
    found, _ = outcome("raises", parts)
    assert (found["status"], found["device"]) == ("failed", "seen")
    assert "ended with status 1" in found["reason"]
    assert "ValueError: it went wrong" in found["reason"]


def test_a_part_that_hangs_is_killed_and_keeps_what_it_told(parts: dict[str, str]) -> None:
    began = time.monotonic()
    found, said = outcome("hangs", parts, limit_s=4.0)
    assert time.monotonic() - began < 30
    assert (found["status"], found["reason"], found["device"]) == ("failed", "out of time after 4 s", "seen")
    assert said == ["before"]


def test_a_part_that_finds_no_device_stops_the_check(parts: dict[str, str]) -> None:
    with pytest.raises(module("process").Unusable, match="no such thing"):
        outcome("refuses", parts)


# The command


def test_without_a_device_it_says_so_and_writes_nothing(tmp_path: Path) -> None:
    done = check(str(tmp_path / "out.json"), "--spec", "cuda:99")
    assert done.returncode == 2
    assert "no usable device: " in done.stderr
    assert "--rehearse" in done.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["nowhere/out.json"], "nowhere/out.json cannot be written"),
        (["out.json", "--every", "0"], "--every 0; wanted more than 0"),
        (["out.json", "--limit-s", "nan"], "--limit-s nan; wanted more than 0"),
        (["out.json", "--only", "lunch"], "invalid choice: 'lunch'"),
    ],
)
def test_a_wrong_command_line_ends_with_2(words: list[str], said: str) -> None:
    done = check(*words)
    assert done.returncode == 2
    assert said in done.stderr


def test_when_time_runs_out_every_part_says_so(tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    done = check(str(out), "--spec", "cpu", "--limit-s", "9")
    assert done.returncode == 1
    document = read(out)
    assert document["passed"] is False
    unfinished = [part for part in module("check").PARTS[1:] if document[part]["status"] != "passed"]
    assert {"conformance", "benchmarks", "sanitizer"} <= set(unfinished)  # a fast machine has time for the training
    for part in unfinished:
        assert document[part]["status"] in ("failed", "skipped")
        assert document[part]["reason"].startswith("out of time")
    assert (document["sanitizer"]["status"], document["sanitizer"]["reason"]) == ("skipped", "out of time")
    assert document["seconds"] < 20
    assert "FAILED" in document["verdict"]


def test_an_interrupted_check_writes_what_it_has(tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    process = subprocess.Popen(
        [SCRIPT, str(out), "--spec", "cpu", "--only", "training", "--only", "conformance"],
        stderr=subprocess.PIPE,
        text=True,
        env=environment(),
    )
    assert process.stderr is not None
    for line in process.stderr:
        if "training: decoder on cpu" in line:
            process.send_signal(signal.SIGINT)
            break
    process.stderr.read()
    process.stderr.close()
    assert process.wait(timeout=PATIENCE_S) == 130
    document = read(out)
    assert document["facts"]["status"] == "passed"
    assert (document["training"]["status"], document["training"]["reason"]) == ("failed", "interrupted")
    assert (document["conformance"]["status"], document["conformance"]["reason"]) == ("skipped", "interrupted")
    assert document["benchmarks"]["reason"] == "not asked for"
    assert [path.name for path in tmp_path.iterdir()] == ["out.json"]


def test_on_the_cpu_backend_training_passes(tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    done = check(str(out), "--spec", "cpu", "--only", "training", "--limit-s", "900")
    assert done.returncode == 0, done.stderr
    document = read(out)
    assert document["passed"] is True
    assert document["emulated"] is False
    runs = document["training"]["runs"]
    assert [(run["model"], run["captured"]) for run in runs] == [
        ("decoder", True),
        ("decoder", False),
        ("mini", True),
        ("mini", False),
    ]
    assert all(run["largest_difference"] == 0 and len(run["losses"]) == document["training"]["steps"] for run in runs)
    assert "the part conformance" in document["left_out"]


def test_turret_is_found_in_the_checkout_where_it_is_not_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tree = module("source_tree")

    def missing(name: str) -> None:
        raise PackageNotFoundError(name)

    monkeypatch.setattr(tree, "distribution", missing)
    variables, from_source = tree.environment(tmp_path)
    assert from_source == ["core", "turret-cpu", "turret-cuda"]
    asked = (
        "import importlib.metadata as m, turret.spi, turret_cuda.plugin\n"
        "d = m.distribution('turret-cuda')\n"
        "print(d.locate_file(''), d.version, turret.__file__, turret_cuda.plugin.__file__)\n"
        "print(sorted(e.name for e in d.entry_points), m.distribution('turret-cpu').requires)\n"
    )
    done = subprocess.run(
        [sys.executable, "-P", "-c", asked], env=variables, capture_output=True, text=True, check=True
    )
    where, entries = done.stdout.splitlines()
    assert where.split()[0] == str(tmp_path)
    assert where.split()[2:] == [
        str(ROOT / "core/src/turret/__init__.py"),
        str(ROOT / "plugins/cuda/src/turret_cuda/plugin.py"),
    ]
    assert entries.startswith("['cuda'] ['core==")


# The rehearsal


@pytest.mark.slow
def test_the_whole_check_is_rehearsed_on_the_emulator(tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    done = check(str(out), "--rehearse", "--limit-s", "1200", timeout=1300)
    assert done.returncode == 0, done.stderr
    document = read(out)
    assert (document["spec"], document["emulated"], document["rehearsal"]) == ("cuda:emulated", True, True)
    assert document["passed"] is True
    assert document["facts"]["cupy"].endswith("+emulated")
    assert document["conformance"]["executed"] > 20
    assert document["conformance"]["failures"] == []
    assert any(each.startswith("conformance: all but one of") for each in document["left_out"])
    assert [run["status"] for run in document["training"]["runs"]] == ["passed"] * 4
    assert any(run["largest_difference"] > 0 for run in document["training"]["runs"]), "it was not the cpu that trained"
    benchmarks = document["benchmarks"]
    assert benchmarks["clock"] == "emulated"
    assert {kernel["status"] for kernel in benchmarks["kernels"]} == {"passed"}
    assert {kernel["dtype"] for kernel in benchmarks["kernels"]} == {"float32", "bfloat16"}
    assert {kernel["of_ceiling"] for kernel in benchmarks["kernels"]} == {None}
    contenders = benchmarks["steps"][0]["contenders"]
    assert [(each["name"], each["status"]) for each in contenders] == [
        ("captured", "passed"),
        ("eager", "passed"),
        ("torch_eager", "absent"),
        ("torch_compile", "absent"),
    ]
    assert {each["ratio"] for each in contenders} == {None}
    assert document["sanitizer"]["status"] == "absent"
