from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from turret.cli import main
from turret.conformance.execute import Rules, execute
from turret.conformance.repro import write
from turret.conformance.results import Status
from turret.conformance.subject import Subject
from turret.conformance.suite import all_cases
from turret.spi import BackendNotFound, ConfigError

PASSING = "matmul/product/M1-K1-N1-f32"
ODD = """
import os, signal

@replaces("matmul", "matmul")
def matmul(right, a, b, **flags):
    result = right(a, b, **flags)
    if a.shape == (1, 63):
        result[0, 7] += 1
    if a.shape == (63, 1):
        return result.astype(numpy.float64)
    if a.shape == (8, 16):
        return numpy.asarray(result)
    if a.shape == (3, 1000):
        raise ValueError("no such tile")
    if a.shape == (65, 64):
        os.kill(os.getpid(), signal.SIGSEGV)
    if a.shape == (2, 2049):
        return None
    return result

@replaces("layout", "transpose")
def transpose(right, x, axes):
    moved = right(x, axes)
    return moved + 0 if x.dtype.kind == "f" else moved
"""


@pytest.fixture(scope="module")
def backends(make_site: Callable[[], Any], own_source: str) -> Iterator[Any]:
    site = make_site()
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(site.folder)
        site.add("p_good", backend=own_source)
        site.add("p_odd", backend=own_source + ODD)
        yield site


def alone(site: Any, *folders: Path) -> Any:
    """The scripts one after the other, in a process that must not meet the suite; it exits as the last bad one does."""
    code = f"""
import runpy, sys
status = 0
for script in {[str(folder / "repro.py") for folder in folders]!r}:
    try:
        runpy.run_path(script, run_name="__main__")
    except SystemExit as left:
        status = left.code or status
    finally:
        assert not [name for name in sys.modules if name.startswith("turret.conformance")]
sys.exit(status)
"""
    return site.run("-c", code)


def test_a_passing_case_passes_alone(backends: Any, tmp_path: Path) -> None:
    case = "matmul/product/M8-K16-N32-f32"
    assert write(case, "p_good", tmp_path / "r").status is Status.PASSED
    done = alone(backends, tmp_path / "r")
    assert (done.returncode, done.stdout) == (0, "nothing is wrong here\n"), done.stderr
    versions = json.loads((tmp_path / "r" / "versions.json").read_text())
    assert versions["backend"] == "p_good" and versions["plugin_version"] == "1.5"
    script = (tmp_path / "r" / "repro.py").read_text()
    assert case in script and "seed 0" in script
    assert "tools.matmul.matmul(" in script
    assert "conformance" not in script.partition('"""\n\nimport')[2]


@pytest.mark.parametrize(
    ("case", "said"),
    [
        ("layout/transpose/63x65-f32-axes10", r"got np\.float32\(0\.0\), wanted np\.float32\(-0\.0\) within 0"),
        ("matmul/product/M1-K63-N65-f32", r"result \(float32\): at \(0, 7\) got .*, wanted .* within "),
        ("matmul/product/M63-K1-N2-f32", r"result: got float64 \(63, 2\), wanted float32 \(63, 2\)"),
        (
            "matmul/product/M8-K16-N32-f32",
            r"result: got <class 'numpy.ndarray'>, wanted <class 'turret_p_odd.backend.Own'>",
        ),
        ("matmul/product/M2-K2049-N33-f32", r"r2 is None"),
    ],
)
def test_a_failing_case_fails_alone_in_the_same_way(backends: Any, tmp_path: Path, case: str, said: str) -> None:
    result = write(case, "p_odd", tmp_path / "r")
    assert result.status is Status.FAILED
    done = alone(backends, tmp_path / "r")
    assert re.search(said, done.stdout), done.stdout + done.stderr
    assert done.returncode == 1
    if place := re.search(r"at \(\d+, \d+\)", result.message):
        assert place[0] in done.stdout
    right = backends.run(str(tmp_path / "r" / "repro.py"), "p_good")
    assert right.returncode == 0, right.stdout + right.stderr


def test_a_call_that_raises_does_so_alone(backends: Any, tmp_path: Path) -> None:
    assert "no such tile" in write("matmul/product/M3-K1000-N5-f32", "p_odd", tmp_path / "r").message
    done = alone(backends, tmp_path / "r")
    assert done.returncode == 1
    assert "ValueError: no such tile" in done.stderr


def test_a_call_that_ends_the_process_is_the_last_line_of_the_script(backends: Any, tmp_path: Path) -> None:
    assert write("matmul/product/M65-K64-N1-f32", "p_odd", tmp_path / "r").status is Status.CRASHED
    lines = (tmp_path / "r" / "repro.py").read_text().splitlines()
    assert re.fullmatch(r"r\d+ = tools\.matmul\.matmul\(a0, a1.*\)", lines[-1])
    assert json.loads((tmp_path / "r" / "versions.json").read_text())["backend"] == "p_odd"
    assert alone(backends, tmp_path / "r").returncode == -11


def test_what_is_not_a_number_or_infinite_or_a_view_comes_back(backends: Any, tmp_path: Path) -> None:
    names = (
        "activation/gelu-erf/5-nan-f32",
        "matmul/propagation/overflow-f32",
        "matmul/product/B3-M6-K10-N4-strided-offset-f32",
    )
    folders = []
    for case in names:
        folders.append(tmp_path / case.replace("/", "-"))
        assert write(case, "p_good", folders[-1]).status is Status.PASSED
    done = alone(backends, *folders)
    assert (done.returncode, done.stdout) == (0, "nothing is wrong here\n" * len(names)), done.stderr
    saved = [np.load(file) for file in (folders[0] / "arrays").iterdir()]
    assert any(np.isnan(array).any() for array in saved)


def test_the_command_says_what_happened_and_how_to_run_it(
    backends: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    case, folder = "matmul/product/M1-K63-N65-f32", tmp_path / "r"
    words = ["conformance", "repro", case, "--backend", "p_odd", "--seed", "3", "--out", str(folder)]
    assert main(words) == 0
    out = capsys.readouterr().out
    assert f"{case}: failed: matmul.matmul(" in out
    assert f"run it alone: python {folder / 'repro.py'}" in out
    assert "seed 3" in (folder / "repro.py").read_text()


def test_a_folder_that_is_not_empty_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("mine")
    with pytest.raises(ConfigError, match="exists and is not an empty folder; give another --out"):
        write("matmul/product/M1-K1-N1-f32", "cpu", tmp_path)
    with pytest.raises(ConfigError, match="not an empty folder"):
        write("matmul/product/M1-K1-N1-f32", "cpu", tmp_path / "mine.txt")
    assert [file.name for file in tmp_path.iterdir()] == ["mine.txt"]


def test_an_unknown_case_or_backend_is_refused_before_anything_is_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(ConfigError, match=r"no case 'matmul/product'; `turret conformance --list`"):
        write("matmul/product", "cpu", tmp_path / "r")
    with pytest.raises(BackendNotFound):
        write("matmul/product/M1-K1-N1-f32", "no_such", tmp_path / "r")
    assert main(["conformance", "repro", "a/b/c", "--backend", "cpu", "--out", str(tmp_path / "r")]) == 2
    assert main(["conformance", "repro", "a/b/c"]) == 2
    assert "--backend" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_a_backend_that_does_not_open_is_said_to_be_so(backends: Any, own_source: str, tmp_path: Path) -> None:
    backends.add("p_shut", backend=own_source + "\n\ndef open_device(device):\n    raise RuntimeError('no such bus')\n")
    with pytest.raises(ConfigError, match=r"cannot be opened: .*no such bus"):
        write("matmul/product/M1-K1-N1-f32", "p_shut", tmp_path / "r")


@pytest.mark.parametrize("place", ["file/r", "link", "x" * 300])
def test_a_folder_that_cannot_be_made_is_no_fault_of_the_backend(backends: Any, tmp_path: Path, place: str) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "link").symlink_to("nowhere")
    with pytest.raises(ConfigError, match=r"cannot be made: .*; give another --out"):
        write(PASSING, "p_good", tmp_path / place)


def test_a_disk_that_is_full_is_no_fault_of_the_backend(subject: Subject, tmp_path: Path) -> None:
    """A folder that is gone in the middle stands for it."""
    with subject.recorded(tmp_path / "r", PASSING, 0, {}) as recorder:
        shutil.rmtree(tmp_path / "r")
        (case,) = [case for case in all_cases() if case.id == PASSING]
        assert execute(case, subject, Rules()).status is Status.PASSED
    assert isinstance(recorder.lost, OSError)


def test_a_script_that_cannot_be_written_is_said_to_be_so(backends: Any, tmp_path: Path, own_source: str) -> None:
    """The backend takes the place of the arrays away while the case runs."""
    deed = "def open_device(device):\n    import pathlib\n    pathlib.Path({0!r}).write_text('')\n    return Opened()\n"
    backends.add("p_thief", backend=f"{own_source}\n\n{deed.format(str(tmp_path / 'r' / 'arrays'))}")
    with pytest.raises(ConfigError, match="r cannot be written: File exists; choose another place"):
        write(PASSING, "p_thief", tmp_path / "r")


def test_a_backend_that_leaves_the_folder_takes_no_script_along(
    backends: Any, own_source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    away = tmp_path / "away"
    away.mkdir()
    backends.add("p_mover", backend=f"{own_source}\nimport os\nos.chdir({str(away)!r})\nprint('chatty')\n")
    assert main(["conformance", "repro", PASSING, "--backend", "p_mover", "--out", "a b"]) == 0
    assert capfd.readouterr().out.splitlines()[1] == "run it alone: python 'a b/repro.py'"
    assert (tmp_path / "a b" / "repro.py").is_file()
    assert list(away.iterdir()) == []
