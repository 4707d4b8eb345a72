"""A replaced file is the old one or the new one, and what is done is on the device."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from turret.files import partial, replace_file, scratch_folder


def test_the_content_is_replaced_and_nothing_stays_beside(tmp_path: Path) -> None:
    for data in (b"one", b"", b"three"):
        replace_file(tmp_path / "file", data)
        assert (tmp_path / "file").read_bytes() == data
    assert os.listdir(tmp_path) == ["file"]


def test_a_leftover_of_a_killed_writer_is_no_obstacle(tmp_path: Path) -> None:
    partial(tmp_path / "file").write_bytes(b"half of something longer")
    replace_file(tmp_path / "file", b"new")
    assert (tmp_path / "file").read_bytes() == b"new"
    assert os.listdir(tmp_path) == ["file"]


def test_a_failure_leaves_the_old_file(tmp_path: Path) -> None:
    (tmp_path / "file").mkdir()
    with pytest.raises(OSError, match="file"):
        replace_file(tmp_path / "file", b"new")
    assert os.listdir(tmp_path) == ["file"]


def test_the_bytes_are_flushed_before_the_rename_and_the_folder_after(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"old")
    flushed = []

    def note(descriptor: int) -> None:
        kind = "folder" if stat.S_ISDIR(os.fstat(descriptor).st_mode) else "file"
        flushed.append((kind, path.read_bytes()))

    monkeypatch.setattr(os, "fsync", note)
    replace_file(path, b"new")
    assert flushed == [("file", b"old"), ("folder", b"new")]


def test_a_scratch_folder_goes_with_what_was_not_taken_out(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), scratch_folder(tmp_path) as folder:
        for name in ("taken", "left"):
            (folder / name).write_bytes(b"x")
        (folder / "taken").replace(tmp_path / "taken")
        raise ZeroDivisionError
    assert os.listdir(tmp_path) == ["taken"]
