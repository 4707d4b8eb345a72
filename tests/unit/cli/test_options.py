"""Arguments that sub-commands share: absurd times and empty paths are usage errors."""

from __future__ import annotations

import subprocess
import sys

import pytest

from turret.cli import main


@pytest.mark.parametrize("command", ["backends", "doctor"])
@pytest.mark.parametrize("limit", ["nan", "inf", "1e300", "-1", "0", ""])
def test_a_time_limit_that_is_no_time_is_a_usage_error(
    command: str, limit: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([command, "--time-limit", limit]) == 2
    assert "--time-limit" in capsys.readouterr().err


@pytest.mark.parametrize("args", [["train", "--out", ""], ["inspect", ""], ["generate", "", "--prompt", "x"]])
def test_an_empty_path_does_not_mean_the_current_folder(args: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(args) == 2
    assert "empty path" in capsys.readouterr().err


@pytest.mark.skipif(sys.platform == "win32", reason="no shell that closes a stream")
@pytest.mark.parametrize("closed", [">&-", "2>&-", ">&- 2>&-"])
def test_a_closed_stream_is_no_error(closed: str) -> None:
    call = subprocess.run(["sh", "-c", f'"$0" -m turret backends {closed}', sys.executable], capture_output=True)
    assert (call.returncode, call.stderr) == (0, b"")
