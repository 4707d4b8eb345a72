from __future__ import annotations

import importlib.metadata
import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from turret.conformance.suite import all_cases

Pytest = Callable[..., "subprocess.CompletedProcess[str]"]
SUITE = ("-p", "turret.conformance.plugin", "--pyargs", "turret.conformance")
ODD = """

@replaces("matmul", "matmul")
def matmul(right, a, b, **flags):
    result = right(a, b, **flags)
    return result.astype(numpy.float64) if a.shape == (1, 63) else result * 2 if a.shape == (63, 1) else result
"""
LEDGER = """
[[expected]]
case = "matmul/product/M63-K1-*"
reason = "doubles"
link = "https://example.org/1"
expires = 2999-01-01
"""


@pytest.fixture(scope="module")
def backends(make_site: Callable[[], Any], own_source: str) -> Any:
    site = make_site()
    site.add("y_good", backend=own_source)
    site.add("y_odd", backend=own_source + ODD)
    (site.folder / "turret_y_odd" / "conformance.toml").write_text(LEDGER)
    site.add("y_expired", backend=own_source)
    (site.folder / "turret_y_expired" / "conformance.toml").write_text(LEDGER.replace("2999", "2020"))
    site.add("y_shut", backend=own_source + "\n\ndef open_device(device):\n    raise RuntimeError('no such bus')\n")
    shut = "\n\nclass Mute(Exception):\n    def __str__(self):\n        return 1\n\ndef close(self):\n    raise Mute\n"
    site.add("y_stuck", backend=f"{own_source}{shut}\nOpened.close = close\n")
    return site


@pytest.fixture
def run_pytest(backends: Any, tmp_path: Path) -> Pytest:
    """pytest in a project of its own, without this repository's settings."""
    config = tmp_path / "pytest.ini"
    config.write_text("[pytest]\n")

    def run(*words: str) -> Any:
        return backends.run(
            "-m", "pytest", "-c", str(config), "--rootdir", str(tmp_path), "-p", "no:cacheprovider", *words
        )

    return run


def test_ids_are_those_of_the_command_line(run_pytest: Pytest) -> None:
    done = run_pytest(*SUITE, "--backend", "y_good", "--collect-only", "-q")
    assert done.returncode == 0, done.stdout + done.stderr
    ids = [line for line in done.stdout.splitlines() if "/" in line]
    assert ids == [case.id for case in all_cases()]


def test_each_status_is_told_in_the_words_of_pytest(run_pytest: Pytest) -> None:
    """One failure, one expected, one unsupported, one passed; the failure says how to have it alone."""
    chosen = "M1-K63-N65-f32 or M63-K1-N2-f32 or M1-K1-N1-f32 or M3-K0-N5-bf16"
    words = ("--backend", "y_odd", "-k", chosen, "--conformance-seed", "7", "-rA", "-v")
    done = run_pytest(*SUITE, *words)
    assert done.returncode == 1, done.stdout + done.stderr
    for text in (
        r"matmul/product/M1-K1-N1-f32 PASSED",
        r"matmul/product/M1-K63-N65-f32 FAILED",
        r"matmul/product/M63-K1-N2-f32 XFAIL",
        r"matmul/product/M3-K0-N5-bf16 SKIPPED",
        r"matmul\.matmul\(float32\[1, 63\], float32\[63, 65\].*\): result: got dtype float64, wanted float32",
        r"again: turret conformance repro matmul/product/M1-K63-N65-f32 --backend y_odd --seed 7",
        r"doubles \(https://example.org/1\): ",
        r"unsupported: the device does not declare bfloat16",
        r"conformance of y_odd: 3 cases executed, seed 7",
        r"1 failed, 1 passed, 1 skipped, \d+ deselected, 1 xfailed",
    ):
        assert re.search(text, done.stdout), f"{text}\n{done.stdout}"
    assert "Traceback" not in done.stdout


def test_nothing_executed_is_a_failure(run_pytest: Pytest) -> None:
    done = run_pytest(*SUITE, "--backend", "y_good", "-k", "matmul and product and bf16")
    assert done.returncode == 1, done.stdout
    assert "no case was executed, which proves nothing: the run fails" in done.stdout


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((), "the conformance suite needs --backend BACKEND; `turret backends` lists them"),
        (("--backend", "y_expired"), "expired on 2020-01-01"),
        (("--backend", "y_good", "--conformance-seed", "-1"), "-1 is no seed; wanted 0 to 4294967295"),
        (("--backend", "y_shut", "-k", "M1-K1-N1-f32"), "no such bus"),
    ],
)
def test_a_run_that_cannot_be_fails_and_says_why(run_pytest: Pytest, words: tuple[str, ...], said: str) -> None:
    done = run_pytest(*SUITE, *words)
    assert done.returncode not in (0, 5), done.stdout
    assert said in done.stdout + done.stderr
    assert "INTERNALERROR" not in done.stdout + done.stderr
    assert "passed" not in done.stdout


def test_core_announces_nothing_to_pytest() -> None:
    points = importlib.metadata.distribution("core").entry_points
    assert {point.group for point in points} == {"console_scripts"}


def test_other_peoples_runs_meet_nothing_of_ours(run_pytest: Pytest, tmp_path: Path) -> None:
    (tmp_path / "test_theirs.py").write_text(
        "import sys\n\ndef test_theirs(pytestconfig):\n"
        "    assert not [name for name in sys.modules if name.partition('.')[0] == 'turret']\n"
        "    assert not [p for p in pytestconfig.pluginmanager.get_plugins() if 'turret' in repr(p)]\n"
    )
    done = run_pytest("--trace-config", str(tmp_path / "test_theirs.py"))
    assert done.returncode == 0, done.stdout
    assert "1 passed" in done.stdout
    assert "turret" not in done.stdout


def test_a_backend_that_does_not_close_fails_the_run(run_pytest: Pytest) -> None:
    done = run_pytest(*SUITE, "--backend", "y_stuck", "-k", "M1-K1-N1-f32")
    assert done.returncode == 1
    assert "the backend did not close: Mute: (its text raises TypeError)" in done.stdout
    assert "1 passed" in done.stdout
    assert "Traceback" not in done.stdout + done.stderr
