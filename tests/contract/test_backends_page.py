"""The page of backends shows the stored reports, and the stored reports are of the code as it is."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from turret import __version__
from turret.conformance.audit import Audit
from turret.conformance.diff import compare
from turret.conformance.report import Report
from turret.conformance.results import Result, Status
from turret.conformance.session import SUITE_VERSION
from turret.conformance.stored import read
from turret.spi import SPI_VERSION

CASES = ("softmax/forward/5", "softmax/forward/6", "rope/forward/7")


@pytest.fixture
def reports(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """scripts/reference/reports.py, looking at an empty folder."""
    monkeypatch.syspath_prepend(str(root / "scripts"))
    module = import_module("reference.reports")
    folder = tmp_path / "reference" / "reports"
    folder.mkdir(parents=True)
    monkeypatch.setattr(module, "FOLDER", folder)
    monkeypatch.setattr(import_module("generate_reference"), "REFERENCE", folder.parent)
    return module


def invented(backend: str, cases: Sequence[str] = CASES, **facts: Any) -> Report:
    known = {
        **dict.fromkeys(("distribution", "plugin_version", "plugin_spi", "python", "platform", "device"), "1.0"),
        "device_kind": "emulated",
        "suite": f"{SUITE_VERSION[0]}.{SUITE_VERSION[1]}",
        "spi": f"{SPI_VERSION[0]}.{SPI_VERSION[1]}",
        "core": __version__,
        "native": ["softmax"],
        "libraries": {"numpy": "2.4"},
    }
    rules = {"isolate": False, "forbid_derived": False, "forbid_host": False}
    return Report(
        backend=backend,
        facts={**known, **facts},
        asked={"profile": "full", "capabilities": [], "pattern": "", "seed": 0, **rules},
        started="2026-05-04T03:02:01+00:00",
        seconds=1.2345,
        results=[
            Result(
                case=case,
                capability=case.partition("/")[0],
                status=Status.PASSED if case != CASES[-1] else Status.SKIPPED,
                seconds=0.01234,
                message="" if case != CASES[-1] else "no | bfloat16",
                budget_used=0.0 if case == CASES[0] else 0.123456,
                native=case != CASES[-1],
                calls=3,
                derived=("softmax", "rope") if case == CASES[1] else (),
            )
            for case in cases
        ],
        problems=[],
        audit=Audit(certified={"primitives": True, "full": False}),
    )


def store(reports: Any, *made: Report) -> None:
    for report in made:
        path = reports.FOLDER / f"{reports.stem(report.backend)}.json"
        path.write_text(reports.slim(report), encoding="utf-8")


def test_the_stored_reports_are_of_this_code(root: Path) -> None:
    command = [sys.executable, "scripts/conformance_reports.py", "--check"]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_a_slim_report_is_a_report_that_says_the_same(reports: Any) -> None:
    whole = invented("cuda:1")
    store(reports, whole)
    (path,) = reports.FOLDER.iterdir()
    slim = read(path)
    assert path.name == "cuda-1.json"
    assert not compare(whole, slim).as_json()["lost"]
    assert [each.status for each in slim.results] == [each.status for each in whole.results]
    rows, wanted = slim.by_capability(), whole.by_capability()
    for name in wanted:
        assert {**rows[name], "seconds": 0, "budget_used": 0} == {**wanted[name], "seconds": 0, "budget_used": 0}
        assert rows[name]["budget_used"] == pytest.approx(wanted[name]["budget_used"], abs=5e-3)
    assert slim.results[0].budget_used == 0.0


def test_a_slim_report_has_one_case_a_line_and_no_times_of_cases(reports: Any) -> None:
    text = reports.slim(invented("cpu"))
    assert sum('"case":' in line for line in text.splitlines()) == len(CASES)
    assert text == reports.slim(replace(invented("cpu"), seconds=1.3, advice=["make rope native: 3 ms"]))
    assert all("seconds" not in result for result in json.loads(text)["results"])


def test_reports_of_this_code_are_not_outdated(reports: Any) -> None:
    store(reports, invented("cpu"), invented("cuda:1"))
    assert reports.outdated(reports.stored(), CASES) == []


@pytest.mark.parametrize(
    ("report", "words"),
    [
        (invented("cpu", suite="0.9"), r"suite 0\.9"),
        (invented("cpu", spi="0.3"), r"spi 0\.3"),
        (invented("cpu", core="0.0.1"), r"core 0\.0\.1"),
        (invented("cpu", CASES[1:]), r"lacks 1 case\(s\), such as softmax/forward/5"),
        (invented("cpu", (*CASES, "rope/forward/9")), r"still has 1 case\(s\), such as rope/forward/9"),
        (replace(invented("cpu"), facts={}), "did not open"),
    ],
)
def test_an_old_report_is_named_with_the_reason(reports: Any, report: Report, words: str) -> None:
    store(reports, invented("tpu"), report)
    (fault,) = reports.outdated(reports.stored(), CASES)
    assert re.match(rf"cpu\.json .*{words}.*conformance_reports\.py", fault)


def test_a_report_under_another_name_is_a_fault(reports: Any) -> None:
    assert "is of backend tpu" in reports.outdated({"cpu": invented("tpu")}, CASES)[0]


def test_no_report_at_all_is_a_fault(reports: Any) -> None:
    assert reports.outdated(reports.stored(), CASES)


def test_the_page_has_a_column_per_backend_and_a_row_per_capability(reports: Any) -> None:
    store(reports, invented("tpu"), invented("cpu", CASES[:2], device="a|b"))
    rows = [line for line in import_module("reference.backends").page().splitlines() if line.startswith("|")]
    assert rows[0] == "|  | `cpu` | `tpu` |"
    assert r"| device | `a\|b`, kind `emulated` | `1.0`, kind `emulated` |" in rows
    assert "| `softmax` | 2 passed, native, 1 derived | 2 passed, native, 1 derived |" in rows
    assert "| `rope` | not run | 1 skipped, derived |" in rows
    assert "| certified | primitives | primitives |" in rows


def test_pages_are_stale_as_soon_as_a_report_changes(reports: Any, capsys: pytest.CaptureFixture[str]) -> None:
    generate = import_module("generate_reference").main
    store(reports, invented("cpu"))
    assert generate(["--check", "backends"]) == 1
    assert generate(["backends"]) == 0
    assert generate(["--check", "backends"]) == 0
    assert {path.name for path in reports.FOLDER.parent.glob("*.*")} == {"backends.md", "backends.html"}
    store(reports, invented("cpu", CASES[:2]))
    capsys.readouterr()
    assert generate(["--check", "backends"]) == 1
    assert "backends.md, backends.html" in capsys.readouterr().err


def test_reports_come_from_a_run_of_the_suite(reports: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    script, commands = import_module("conformance_reports"), []

    def run(command: list[str], check: bool) -> subprocess.CompletedProcess[str]:
        commands.append(command)
        made = invented(command[4], () if command[4] == "tpu" else CASES)
        Path(command[-1]).write_text(json.dumps(made.as_json()), encoding="utf-8")
        return subprocess.CompletedProcess(command, 1)

    monkeypatch.setattr(subprocess, "run", run)
    assert script.main(["cuda:1", "tpu"]) == 1
    assert [command[1:5] for command in commands] == [
        ["-m", "turret", "conformance", word] for word in ("cuda:1", "tpu")
    ]
    assert [path.name for path in reports.FOLDER.iterdir()] == ["cuda-1.json"], "nothing executed, nothing stored"
    assert "cuda:1" in (reports.FOLDER.parent / "backends.html").read_text(encoding="utf-8")


@pytest.mark.parametrize("arguments", [[], ["--check", "cpu"]])
def test_the_script_wants_backends_or_a_check(reports: Any, arguments: list[str]) -> None:
    with pytest.raises(SystemExit) as end:
        import_module("conformance_reports").main(arguments)
    assert end.value.code == 2


def test_the_kill_table_is_of_this_catalogue_and_of_these_cases(root: Path) -> None:
    from turret.conformance.faults.catalogue import CATALOGUE
    from turret.conformance.suite import all_cases

    killed = json.loads((root / "docs/reference/kills.json").read_text(encoding="utf-8"))["killed"]
    assert list(killed) == [each.name for each in CATALOGUE], "run scripts/conformance_reports.py --faults cpu"
    assert set(killed.values()) <= {case.id for case in all_cases()}, "a fault survives, or its case has another name"
