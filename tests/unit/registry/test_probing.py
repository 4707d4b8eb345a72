from __future__ import annotations

import os
import sys
import time
import trace
from collections.abc import Callable
from pathlib import Path

import pytest

from turret.registry.probing import probe
from turret.spi import BackendInfo

Make = Callable[..., BackendInfo]
UNIX = pytest.mark.skipif(sys.platform == "win32", reason="signals are POSIX")


def verdict_of(make: Make, body: str, *, seconds: float = 20.0) -> str | None:
    source = "def why_not(device):\n" + "".join(f"    {line}\n" for line in body.splitlines())
    return probe(make("probed", extra=source), "d0", seconds=seconds).reason


def test_none_means_usable(backend_module: Make) -> None:
    assert verdict_of(backend_module, "return None") is None


def test_the_probe_is_given_the_device_and_its_reason_comes_back_whole(backend_module: Make) -> None:
    assert verdict_of(backend_module, "return f'no device {device}: driver \\u2716'") == "no device d0: driver \u2716"


def test_what_the_probe_prints_is_not_its_answer(backend_module: Make, capfd: pytest.CaptureFixture[str]) -> None:
    body = "import os\nprint('{\"reason\": \"printed\"}')\nos.write(1, b'native noise')\nreturn None"
    assert verdict_of(backend_module, body) is None
    assert capfd.readouterr().out == ""


@pytest.mark.parametrize("answer", ["3", "''", "True", "['no']"])
def test_an_answer_that_is_neither_a_reason_nor_none_is_a_reason(backend_module: Make, answer: str) -> None:
    reason = verdict_of(backend_module, f"return {answer}")
    assert reason == f"its probe answered {answer}, wanted a reason or None"


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("raise OSError('libdevice.so')", "its probe ended with status 1: OSError: libdevice.so"),
        ("import no_such_library", "ModuleNotFoundError: No module named 'no_such_library'"),
        ("raise SystemExit(0)", "its probe ended with status 0 without an answer"),
        ("import os; os._exit(7)", "its probe ended with status 7 without an answer"),
    ],
)
def test_a_probe_that_raises_or_exits_is_recorded(backend_module: Make, body: str, reason: str) -> None:
    assert reason in str(verdict_of(backend_module, body))


@UNIX
def test_a_probe_that_crashes_is_recorded_with_its_signal(backend_module: Make) -> None:
    assert "its probe was killed by SIGABRT" in str(verdict_of(backend_module, "import os; os.abort()"))


def test_a_probe_that_hangs_is_killed_at_the_limit(backend_module: Make, tmp_path: Path) -> None:
    mark = tmp_path / "pid"
    body = f"import os, pathlib, time\npathlib.Path({str(mark)!r}).write_text(str(os.getpid()))\ntime.sleep(600)"
    start = time.monotonic()
    reason = verdict_of(backend_module, body, seconds=5.0)
    assert reason == "its probe gave no answer within 5 s and was killed"
    assert time.monotonic() - start < 30
    if sys.platform != "win32":
        with pytest.raises(ProcessLookupError):
            os.kill(int(mark.read_text()), 0)


@UNIX
def test_a_hanging_probe_takes_its_children_with_it(backend_module: Make, tmp_path: Path) -> None:
    mark = tmp_path / "pid"
    body = (
        "import pathlib, subprocess, sys, time\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])\n"
        f"pathlib.Path({str(mark)!r}).write_text(str(child.pid))\n"
        "time.sleep(600)"
    )
    assert "was killed" in str(verdict_of(backend_module, body, seconds=5.0))
    for _ in range(100):
        state = Path(f"/proc/{mark.read_text()}/stat")
        if not state.exists() or state.read_text().rpartition(")")[2].split()[0] == "Z":
            return
        time.sleep(0.05)
    pytest.fail("the probe's child is still running")


def test_a_probe_that_does_not_exist_is_recorded(backend_module: Make) -> None:
    info = backend_module("probed", probe="no_such_module:why_not")
    assert "No module named 'no_such_module'" in str(probe(info).reason)


def test_the_folder_of_the_probe_program_is_not_searched_for_modules(backend_module: Make) -> None:
    # `trace` is both a module of the standard library and a file beside the probe program.
    assert verdict_of(backend_module, "import trace\nreturn f'found {trace.__file__}'") == f"found {trace.__file__}"
