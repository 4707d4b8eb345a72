"""Processes of the lifecycle cases: they answer, are killed when they hang, and leave their last words."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from turret.conformance import child
from turret.conformance.child import plugin_module, report
from turret.spi import BackendInfo


def info(target: str) -> BackendInfo:
    return BackendInfo(name="made-up", distribution="made-up", spi=">=1.0,<2", target=target, probe="made_up:why")


def written(folder: Path, monkeypatch: pytest.MonkeyPatch, body: str, name: str) -> BackendInfo:
    (folder / f"{name}.py").write_text(body)
    monkeypatch.syspath_prepend(folder)
    return info(f"{name}:Target")


def test_a_target_that_is_not_there_is_reported_as_missing() -> None:
    found = report("imports", info("no_such_module_here:X"), "")
    assert found.failure == ""
    assert "no_such_module_here" in found.answer["missing"]
    assert "plugin" not in found.answer


def test_a_backend_of_no_distribution_has_no_plugin_module() -> None:
    assert plugin_module(info("x:Y")) == ""


def test_a_crash_is_told_with_its_last_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bad = written(tmp_path, monkeypatch, "raise RuntimeError('the reason is here')\n", "crashing_target")
    found = report("imports", bad, "")
    assert "ended with status 1" in found.failure
    assert "RuntimeError: the reason is here" in found.failure


def test_a_child_that_hangs_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bad = written(tmp_path, monkeypatch, "import time\nprint('busy')\ntime.sleep(600)\n", "hanging_target")
    monkeypatch.setattr(child, "SECONDS", 4.0)
    began = time.monotonic()
    assert "did not end within 4 s" in report("imports", bad, "").failure
    assert time.monotonic() - began < 60


def test_what_an_import_does_to_the_process_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    body = "import os, numpy, pathlib\nos.environ['HOME'] = 'elsewhere'\nnumpy.seterr(all='ignore')\n"
    body += "pathlib.Path('left-behind').write_text('')\n"
    found = report("imports", written(tmp_path, monkeypatch, body, "messy_target"), "")
    target = found.answer["target"]
    assert "environment" in target["state"]
    assert "NumPy's error state" in target["state"]
    assert [Path(each).name for each in target["files"]] == ["left-behind"]
