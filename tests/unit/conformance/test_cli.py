from __future__ import annotations

import json
import re
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from turret.cli import main
from turret.cli.conformance.targets import check_writable
from turret.conformance import examine
from turret.conformance.stored import read
from turret.conformance.suite import all_cases
from turret.spi import ConfigError

PLAIN = "matmul/product/M1-K1-N1-f32"
ODD = """

@replaces("matmul", "matmul")
def matmul(right, a, b, **flags):
    result = right(a, b, **flags)
    print("this library is chatty")
    return {
        (1, 63): lambda: result.astype(numpy.float64),
        (63, 1): lambda: result[:1],
        (65, 64): lambda: numpy.asarray(result),
        (8, 16): lambda: None,
        (63, 65): lambda: result * numpy.float32(1.001),
    }.get(a.shape, lambda: result)()
"""
ODD_PATTERN = "matmul/product/M*-N*[0-9]-f32"
WRONG = {
    "M1-K63-N65": r"got dtype float64, wanted float32",
    "M65-K64-N1": r"got numpy.ndarray, wanted an array of the backend's own type \S*Own",
    "M8-K16-N32": r"got 0 results, wanted 1",
    "M63-K65-N64": r"got \S+, wanted \S+ within .*: [\d.e+]+ budgets; \d+ of 4032 elements are off",
    "M63-K1-N2": r"got shape \(1, 2\), wanted \(63, 2\)",
}
LEDGER = """
profiles = ["primitives"]

[[expected]]
case = "{case}"
reason = "known"
link = "https://example.org/1"
expires = {expires}
"""


@pytest.fixture(scope="module")
def backends(make_site: Callable[[], Any], own_source: str) -> Iterator[Any]:
    """Right and wrong backends beside the real ones, found by this process as well."""
    site = make_site()
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(site.folder)
        site.add("c_good", backend=own_source)
        site.add("c_odd", backend=own_source + ODD)
        site.add("c_shut", backend=own_source + "\n\ndef open_device(device):\n    raise RuntimeError('no such bus')\n")
        for name, text in {
            "c_malformed": "profiles = 3",
            "c_expired": LEDGER.format(case=PLAIN, expires="2020-01-01"),
            "c_unmatched": LEDGER.format(case="matmul/no-such-case/*", expires="2999-01-01"),
            "c_strict": LEDGER.format(case=PLAIN, expires="2999-01-01"),
        }.items():
            site.add(name, backend=own_source)
            (site.folder / f"turret_{name}" / "conformance.toml").write_text(text)
        yield site


def said(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    """(exit status, stdout, stderr) of a command line in this process."""
    status = main(["conformance", *words])
    printed = capsys.readouterr()
    return status, printed.out, printed.err


def test_a_wrong_backend_in_a_real_process(backends: Any, tmp_path: Path) -> None:
    """stdout has failures, the table and the verdict; stderr what happens on the way; the report has it all."""
    file = tmp_path / "report.json"
    done = backends.run("-m", "turret", "conformance", "c_odd", "-k", ODD_PATTERN, "--seed", "5", "--json", str(file))
    assert done.returncode == 1, done.stderr
    out = " ".join(done.stdout.split())
    for sizes, text in WRONG.items():
        case = f"matmul/product/{sizes}-f32"
        assert re.search(rf"FAILED {case} matmul\.matmul\(float32\[[\d, ]+\], float32\[[\d, ]+\].*?\): .*{text}", out)
        assert f"again: turret conformance repro {case} --backend c_odd --seed 5" in out
        assert f"failed: {case}" in done.stderr
    report = read(file)
    count = len(report.results)
    assert count > len(WRONG)
    assert re.search(rf"matmul native {count - 5} 5 \d+% [\d.]+ ", out)
    assert re.search(rf"c_odd: FAILED: {count - 5} passed, 5 failed \(in [\d.]+ s, seed 5\)$", out)
    assert "chatty" not in done.stdout + done.stderr
    assert "Traceback" not in done.stderr

    data = json.loads(file.read_text())
    assert data["good"] is False and data["executed"] == count
    assert data["counts"]["failed"] == 5 and data["counts"]["passed"] == count - 5
    assert data["asked"]["seed"] == 5 and data["asked"]["pattern"] == ODD_PATTERN
    assert data["facts"]["plugin_version"] == "1.5" and data["facts"]["spi"] == "1.0"
    assert data["capabilities"]["matmul"]["failed"] == 5
    assert {each["case"] for each in data["results"] if each["status"] == "failed"} == {
        f"matmul/product/{sizes}-f32" for sizes in WRONG
    }
    used = [each["budget_used"] for each in data["results"] if each["status"] == "passed"]
    assert all(0 <= each < 1 for each in used)


def test_a_right_backend_passes_and_the_reports_are_written(
    backends: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = {kind: tmp_path / f"report.{kind}" for kind in ("json", "markdown", "html")}
    flags = [word for kind, file in files.items() for word in (f"--{kind}", str(file))]
    status, out, err = said(capsys, "c_good", "-k", "matmul/product/M1-", *flags)
    assert status == 0
    assert "c_good: passed: " in out and "FAILED" not in out
    assert err == ""
    assert read(files["json"]).good
    assert "c_good" in files["markdown"].read_text() and "<html" in files["html"].read_text()


def test_a_backend_that_is_not_installed_is_a_usage_error(capsys: pytest.CaptureFixture[str]) -> None:
    status, out, err = said(capsys, "no_such")
    assert (status, out) == (2, "")
    assert err.startswith("error: ") and "no_such" in err


def test_a_backend_that_does_not_open_fails_and_says_why(
    backends: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "report.json"
    status, out, _ = said(capsys, "c_shut", "-k", PLAIN, "--json", str(file))
    assert status == 1
    assert "c_shut: FAILED: backend 'c_shut' cannot be opened: " in out and "no such bus" in out
    report = read(file)
    assert report.results == [] and report.facts == {} and not report.good


@pytest.mark.parametrize(
    ("words", "text"),
    [
        ((), "no BACKEND to examine; `turret backends` lists what is installed"),
        (("cpu", "--profile", "trainnig"), "'trainnig' is not one of 'primitives'"),
        (("cpu", "--capability", "mat_mul"), "no capability 'mat_mul'; did you mean 'matmul'?"),
        (("cpu", "-k", "no-such-case"), "no case matches profile full, pattern 'no-such-case'"),
        (("cpu", "--profile", "primitives", "--capability", "softmax"), "no case matches profile primitives"),
        (("cpu", "--timeout-s", "0"), "0"),
        (("cpu", "--timeout-s", "nan"), "nan is no time"),
        (("cpu", "--seed", "-1"), "-1"),
        (("cpu", "--ledger", "none.toml"), "none.toml"),
        (("cpu", "--json", ""), "an empty path"),
        (("cpu", "extra"), "extra"),
        (("--list", "-k", "no-such-case"), "no case matches"),
    ],
)
def test_a_wrong_command_line_is_a_usage_error_that_runs_nothing(
    words: tuple[str, ...], text: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("turret.conformance.examine.run_in_parts", lambda *a, **o: pytest.fail("cases were run"))
    status, out, err = said(capsys, *words)
    assert (status, out) == (2, "")
    assert text in err and err.count("\n") == 1


@pytest.mark.parametrize("flag", ["--json", "--markdown", "--html"])
@pytest.mark.parametrize("kind", ["folder", "lost", "under_file"])
def test_a_report_path_that_cannot_be_written_is_known_before_anything_runs(
    flag: str, kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("turret.conformance.examine.run_in_parts", lambda *a, **o: pytest.fail("cases were run"))
    (tmp_path / "file").write_text("")
    path, text = {
        "folder": (tmp_path, "is a folder; give the path of a file"),
        "lost": (tmp_path / "none" / "r.json", "there is no folder"),
        "under_file": (tmp_path / "file" / "r.json", "there is no folder"),
    }[kind]
    status, out, err = said(capsys, "cpu", "-k", PLAIN, flag, str(path))
    assert (status, out) == (2, "")
    assert f"{flag} {path}" in err and text in err


def test_a_path_without_permission_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # the superuser may write everywhere: the answer of the system is put in its place
    monkeypatch.setattr("os.access", lambda path, mode: bool(Path(path).stat().st_mode & stat.S_IWUSR))
    locked = tmp_path / "locked"
    locked.mkdir(mode=0o555)
    with pytest.raises(ConfigError, match=r"no permission to write .*locked; choose another path"):
        check_writable(locked / "r.json", "--json")
    file = tmp_path / "r.json"
    file.write_text("kept")
    file.chmod(0o444)
    with pytest.raises(ConfigError, match="no permission to write"):
        check_writable(file, "--json")
    assert file.read_text() == "kept"


def test_checking_a_path_leaves_no_file(tmp_path: Path) -> None:
    check_writable(tmp_path / "r.json", "--json")
    assert list(tmp_path.iterdir()) == []


def test_list_prints_ids_in_order_and_runs_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    status, out, err = said(capsys, "--list")
    assert (status, err) == (0, "")
    assert out.split("\n") == [*(case.id for case in all_cases()), ""]
    _, narrowed, _ = said(capsys, "minimal", "--list", "--capability", "matmul", "-k", "*-bf16")
    assert narrowed and all(re.fullmatch(r"matmul/\S+-bf16", line) for line in narrowed.splitlines())


def test_zero_executed_is_a_failure(backends: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """The device of NumPy has no bfloat16: all that is asked for is unsupported."""
    status, out, _ = said(capsys, "c_good", "--capability", "matmul", "-k", "matmul/product/*-bf16")
    assert status == 1
    assert "FAILED: no case was executed, which proves nothing" in out


@pytest.mark.parametrize(
    ("name", "status", "text"),
    [
        ("c_malformed", 2, "conformance.toml of turret-c_malformed: profiles = 3; wanted a list"),
        ("c_expired", 1, f"'{PLAIN}' expired on 2020-01-01"),
        ("c_unmatched", 1, "'matmul/no-such-case/*' matches no case; remove it or correct the pattern"),
        ("c_strict", 1, f"the ledger expects it to fail (known); remove the entry '{PLAIN}'"),
    ],
)
def test_a_ledger_that_is_not_right_fails_the_run(
    backends: Any, name: str, status: int, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    got, out, err = said(capsys, name, "-k", PLAIN)
    assert got == status
    assert text in " ".join((out + err).split())


def test_a_ledger_of_ones_own_excuses_what_is_known(
    backends: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "mine.toml"
    file.write_text(LEDGER.format(case="matmul/product/M8-K16-N32-f32", expires="2999-01-01").replace("profiles", "#"))
    status, out, _ = said(capsys, "c_odd", "-k", "matmul/product/M[18]-K1*-N*[0-9]-f32", "--ledger", str(file))
    assert status == 0
    assert "c_odd: passed: 1 passed, 1 expected failure" in out


def test_hostile_text_is_shown_and_never_obeyed(backends: Any, tmp_path: Path, own_source: str) -> None:
    """Half a character ends no run, and an escape sequence moves no cursor."""
    text = "'\\x1b[2J [red] \\ud800 \\x07'"
    raising = f"\n\n@replaces('matmul', 'matmul')\ndef matmul(*_, **__):\n    raise ValueError({text})\n"
    backends.add("c_hostile", backend=own_source + raising)
    file = tmp_path / "r.json"
    done = backends.run("-m", "turret", "conformance", "c_hostile", "-k", PLAIN, "--json", str(file))
    assert done.returncode == 1, done.stderr
    assert r"\x1b[2J [red] \ud800 \x07" in " ".join(done.stdout.split())
    assert not set("\x1b\x07") & set(done.stdout)
    assert not read(file).good


def test_reports_are_written_though_nobody_reads_the_rest(backends: Any, tmp_path: Path) -> None:
    """As in `turret conformance ... | head -1`, and with a full disk behind stderr."""
    file = tmp_path / "r.json"
    code = (
        "import os, sys; from turret.cli import main; r, w = os.pipe(); os.close(r); os.dup2(w, 1); os.dup2(w, 2); "
        f"sys.exit(main(['conformance', 'c_odd', '-k', {ODD_PATTERN!r}, '--json', {str(file)!r}]))"
    )
    assert backends.run("-c", code).returncode == 1
    assert not read(file).good


def test_a_report_that_cannot_be_written_in_the_end_costs_only_itself(
    backends: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "gone").mkdir()
    real = examine.run_in_parts

    def run(*arguments: Any, **options: Any) -> Any:
        (tmp_path / "gone").rmdir()
        return real(*arguments, **options)

    monkeypatch.setattr(examine, "run_in_parts", run)
    status, out, err = said(capsys, "c_good", "-k", PLAIN, "--json", "gone/r.json", "--html", "r.html")
    assert status == 1
    assert "c_good: passed: 1 passed" in out
    assert err == f"error: --json {tmp_path / 'gone' / 'r.json'} is not written: No such file or directory\n"
    assert (tmp_path / "r.html").is_file()


def test_a_plugin_may_print_and_move_and_put_anything_on_the_path(
    backends: Any, own_source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the process of the command itself, where its manifest is read."""
    careless = "import os, pathlib, sys\nos.chdir('/')\nsys.path.append(pathlib.Path('/no'))\n"
    careless += "os.write(1, b'raw ')\nprint('chatty')\n"
    site = type(backends)(tmp_path / "site")
    site.folder.mkdir()
    manifest = (backends.folder / "turret_c_good" / "plugin.py").read_text().replace("c_good", "c_careless")
    site.add("c_careless", plugin=careless + manifest, backend=own_source)
    monkeypatch.chdir(tmp_path)
    done = site.run("-m", "turret", "conformance", "c_careless", "-k", PLAIN, "--json", "r.json")
    assert done.returncode == 0, done.stderr
    assert read(tmp_path / "r.json").good
    assert "raw" not in done.stdout and "chatty" not in done.stdout
    assert "chatty" in done.stderr
