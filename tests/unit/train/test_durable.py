"""A replaced file is the old one or the new one."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from turret.train.durable import replace_file


def test_the_content_is_replaced_and_nothing_stays_beside(tmp_path: Path) -> None:
    for data in (b"one", b"", b"three"):
        replace_file(tmp_path / "file", data)
        assert (tmp_path / "file").read_bytes() == data
    assert os.listdir(tmp_path) == ["file"]


def test_a_leftover_of_a_killed_writer_is_no_obstacle(tmp_path: Path) -> None:
    (tmp_path / ".file.tmp").write_bytes(b"half of something longer")
    replace_file(tmp_path / "file", b"new")
    assert (tmp_path / "file").read_bytes() == b"new"
    assert os.listdir(tmp_path) == ["file"]


def test_a_failure_leaves_the_old_file(tmp_path: Path) -> None:
    (tmp_path / "file").mkdir()
    with pytest.raises(OSError, match="file"):
        replace_file(tmp_path / "file", b"new")
    assert os.listdir(tmp_path) == ["file"]
