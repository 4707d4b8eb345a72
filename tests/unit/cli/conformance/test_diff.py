from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from turret.cli import main
from turret.conformance.audit import Audit
from turret.conformance.report import Report
from turret.conformance.results import Result, Status

Write = Callable[..., str]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Writes a report of softmax cases `number -> (status, budget used)` and returns its path."""

    def written(name: str, cases: dict[str, tuple[str, float | None]], *, message: str = "", **asked: Any) -> str:
        facts = {
            **dict.fromkeys(("suite", "spi", "core", "python", "platform", "distribution"), "1.0"),
            **dict.fromkeys(("plugin_version", "plugin_spi", "device", "device_kind"), "1.0"),
            "native": ["softmax"],
            "libraries": {},
        }
        rules = {"isolate": False, "forbid_derived": False, "forbid_host": False}
        report = Report(
            backend="cpu",
            facts=facts,
            asked={"profile": "full", "capabilities": [], "pattern": "", "seed": 0, **rules, **asked},
            started="2026-05-04T03:02:01+00:00",
            seconds=1.0,
            results=[
                Result(
                    case=f"softmax/forward/{number}",
                    capability="softmax",
                    status=Status(status),
                    budget_used=used,
                    message=message,
                )
                for number, (status, used) in cases.items()
            ],
            problems=[],
            audit=Audit(certified={"primitives": True}),
        )
        path = tmp_path / f"{name}.json"
        path.write_text(json.dumps(report.as_json()), encoding="utf-8")
        return str(path)

    return written


def test_a_loss_is_told_and_ends_with_1(write: Write, capsys: pytest.CaptureFixture[str]) -> None:
    old = write("old", {"5": ("passed", 0.1), "6": ("passed", 0.1)})
    new = write("new", {"5": ("failed", None)}, message="got 1,\nwanted 2 \x1b[31m")
    assert main(["conformance", "diff", old, new]) == 1
    out = capsys.readouterr().out
    assert "regression: softmax/forward/5: passed -> failed (got 1, wanted 2 \\x1b[31m)\n" in out
    assert "coverage lost: softmax/forward/6: passed -> not there\n" in out
    assert out.splitlines()[-1] == "LOST: 1 regression(s), 1 case(s) no longer executed"


def test_without_a_loss_it_ends_with_0(write: Write, capsys: pytest.CaptureFixture[str]) -> None:
    old = write("old", {"5": ("failed", None)})
    new = write("new", {"5": ("passed", 0.1), "6": ("passed", 0.1)})
    assert main(["conformance", "diff", old, new]) == 0
    out = capsys.readouterr().out
    assert "newly passing: softmax/forward/5: failed -> passed\n" in out
    assert "newly executed: softmax, 1 case(s)\n" in out
    assert out.splitlines()[-1] == "nothing lost"


def test_a_drift_is_told_and_is_no_loss(write: Write, capsys: pytest.CaptureFixture[str]) -> None:
    old = write("old", {"5": ("passed", 0.1), "6": ("passed", 0.1)})
    new = write("new", {"5": ("passed", 0.3), "6": ("passed", 0.6)}, seed=4)
    assert main(["conformance", "diff", old, new]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line for line in lines if line.startswith("budget drift")] == [
        "budget drift: softmax/forward/6: 10% -> 60%",
        "budget drift: softmax/forward/5: 10% -> 30%",
    ]
    assert "note: different seed: 0 and 4, so the inputs differ" in lines
    assert lines[-1] == "nothing lost; 2 budget(s) drifted"


def test_long_lists_are_cut_and_counted(write: Write, capsys: pytest.CaptureFixture[str]) -> None:
    old = write("old", {str(n): ("passed", 0.1) for n in range(50)})
    assert main(["conformance", "diff", old, write("new", {"0": ("passed", 0.1)})]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert len([line for line in lines if line.startswith("coverage lost: softmax")]) == 20
    assert "coverage lost: ... and 29 more; --json has them all" in lines


def test_json_is_one_object_with_everything(write: Write, capsys: pytest.CaptureFixture[str]) -> None:
    old = write("old", {str(n): ("passed", 0.1) for n in range(50)})
    assert main(["conformance", "diff", old, write("new", {"0": ("passed", 0.1)}), "--json"]) == 1
    data = json.loads(capsys.readouterr().out)
    assert data["lost"] is True
    assert len(data["coverage_lost"]) == 49


@pytest.mark.parametrize("content", [None, b"{}", b"\xff"])
def test_a_file_that_is_no_report_ends_with_2(
    write: Write, tmp_path: Path, capsys: pytest.CaptureFixture[str], content: bytes | None
) -> None:
    other = tmp_path / "other.json"
    if content is not None:
        other.write_bytes(content)
    good = write("good", {"5": ("passed", 0.1)})
    for pair in ([good, str(other)], [str(other), good]):
        assert main(["conformance", "diff", *pair]) == 2
        captured = capsys.readouterr()
        assert "other.json" in captured.err
        assert captured.out == ""


def test_two_files_are_wanted(write: Write, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["conformance", "diff", write("one", {"5": ("passed", 0.1)})]) == 2
    assert "NEW" in capsys.readouterr().err
