"""Only a regular file is opened, and nothing else blocks."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from turret.files import open_regular


def next_descriptor() -> int:
    """The system gives the lowest number that is free."""
    descriptor = os.open(os.devnull, os.O_RDONLY)
    os.close(descriptor)
    return descriptor


def test_a_regular_file_is_open_at_its_beginning_also_behind_a_link(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"abc")
    (tmp_path / "link").symlink_to("file")
    for name in ("file", "link"):
        file = open_regular(tmp_path / name)
        assert file is not None
        with file:
            assert file.read() == b"abc"


@pytest.mark.parametrize("what", ["folder", "pipe", "device"])
def test_whatever_else_is_none_and_stays_closed(tmp_path: Path, what: str) -> None:
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "device").symlink_to(os.devnull)
    before = next_descriptor()
    assert open_regular(tmp_path / what) is None
    assert next_descriptor() == before


@pytest.mark.parametrize(("name", "kind"), [("absent", FileNotFoundError), ("a\0b", ValueError)])
def test_what_is_not_there_is_said_as_the_system_says_it(tmp_path: Path, name: str, kind: type[Exception]) -> None:
    with pytest.raises(kind):
        open_regular(tmp_path / name)
