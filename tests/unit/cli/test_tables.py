from __future__ import annotations

import os
import sys

import pytest

from turret.cli.tables import show

ROWS = [("cpu", "usable", "one two three four five six seven"), ("metal", "absent", "")]


def test_columns_are_aligned_and_a_pipe_gets_whole_lines(capsys: pytest.CaptureFixture[str]) -> None:
    show(("NAME", "STATE", "NOTE"), ROWS)
    wanted = ["NAME   STATE   NOTE", "cpu    usable  one two three four five six seven", "metal  absent"]
    assert capsys.readouterr().out.splitlines() == wanted


def test_a_terminal_gets_its_last_column_wrapped(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shutil.get_terminal_size", lambda: os.terminal_size((35, 24)))
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    show(("NAME", "STATE", "NOTE"), ROWS)
    lines = capsys.readouterr().out.splitlines()
    assert lines[1:3] == ["cpu    usable  one two three four", "               five six seven"]
    assert max(map(len, lines)) <= 35
