from __future__ import annotations

import json
from pathlib import Path

import pytest

import turret.cli.conformance.faults as faults
from turret.cli import main
from turret.conformance.faults.fault import Fault

LIGHT = ("argmax-last-of-equals", "maximum-drops-nan-on-the-right")


def test_a_fault_that_is_found_out_is_named_with_the_case(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    table = tmp_path / "kills.json"
    named = [word for name in LIGHT for word in ("--fault", name)]
    assert main(["conformance", "faults", "--backend", "minimal", *named, "--json", str(table)]) == 0
    shown = capsys.readouterr().out
    assert "2 of 2 faults killed" in shown and "reduction/argmax/" in shown
    kills = json.loads(table.read_text())["kills"]
    assert [each["fault"] for each in kills] == list(LIGHT)
    assert all(each["url"].startswith("https://") and each["killed_by"] for each in kills)


def test_a_survivor_fails_the_command(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    harmless = Fault(
        name="harmless",
        capability="layout",
        slot="layout",
        kind="forward",
        url="https://example.org/1",
        report="Nothing.",
        summary="Nothing is wrong.",
        wrap=lambda table, tools: table,
    )
    monkeypatch.setattr(faults, "find", lambda names: (harmless,))
    assert main(["conformance", "faults", "--backend", "minimal"]) == 1
    told = capsys.readouterr()
    assert "survivors: harmless" in told.out and "SURVIVED" in told.err


def test_an_unknown_fault_is_a_usage_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["conformance", "faults", "--backend", "minimal", "--fault", "argmax-last-of-equal"]) == 2
    assert "did you mean 'argmax-last-of-equals'" in capsys.readouterr().err


def test_one_of_each_capability(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    asked: list[str] = []
    monkeypatch.setattr(faults, "kill_all", lambda opened, *, faults, **options: asked.extend(faults) or iter(()))
    assert main(["conformance", "faults", "--backend", "minimal", "--one-each"]) == 1, "nothing was hunted"
    capabilities = [each.capability for each in asked]  # type: ignore[attr-defined]
    assert len(capabilities) == len(set(capabilities)) > 19
