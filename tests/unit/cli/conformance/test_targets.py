from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from turret.cli.conformance.targets import checked, write
from turret.spi import ConfigError


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_paths_do_not_move_with_the_working_folder(here: Path) -> None:
    assert checked({"--json": Path("r.json"), "--html": None}) == {"--json": here / "r.json"}


@pytest.mark.parametrize("other", ["r.x", "./r.x", "sub/../r.x", "link"])
def test_one_file_for_two_flags_is_refused(here: Path, other: str) -> None:
    (here / "sub").mkdir()
    (here / "link").symlink_to("r.x")
    with pytest.raises(ConfigError, match="--json and --html are the same file"):
        checked({"--json": Path("r.x"), "--html": Path(other)})


def test_a_device_may_be_given_twice() -> None:
    assert len(checked({"--json": Path(os.devnull), "--html": Path(os.devnull)})) == 2


def test_a_link_into_nowhere_and_an_endless_name_are_known_before(here: Path) -> None:
    (here / "link").symlink_to("nowhere/r.json")
    with pytest.raises(ConfigError, match=r"--json link is a link to .*nowhere/r\.json"):
        checked({"--json": Path("link")})
    with pytest.raises(ConfigError, match=r"--json x+: File name too long"):
        checked({"--json": Path("x" * 300)})


def test_what_was_there_stays_where_the_disk_is_full(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = here / "r.json"
    path.write_text("before")
    path.chmod(0o640)
    real = Path.write_text

    def full(self: Path, text: str, **options: str) -> int:
        real(self, text[:3], **options)
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(Path, "write_text", full)
        assert write(path, "after", "--json") == f"--json {path} is not written: No space left on device"
    assert path.read_text() == "before"
    assert write(path, "after", "--json") == ""
    assert (path.read_text(), path.stat().st_mode & 0o777) == ("after", 0o640)
    assert list(here.iterdir()) == [path]


def test_a_link_stays_a_link(here: Path) -> None:
    (here / "real").write_text("")
    (here / "link").symlink_to("real")
    assert write(here / "link", "new", "--json") == ""
    assert (here / "link").is_symlink()
    assert (here / "real").read_text() == "new"


@pytest.mark.skipif(sys.platform != "linux", reason="/dev/full")
def test_a_device_is_written_to_and_not_replaced() -> None:
    assert write(Path("/dev/full"), "text", "--json") == "--json /dev/full is not written: No space left on device"
    assert Path("/dev/full").is_char_device()
