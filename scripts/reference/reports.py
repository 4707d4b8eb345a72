"""The conformance reports that lie in docs/reference/reports/: how they are stored, read and found to be old."""

from __future__ import annotations

import json
from collections.abc import Collection
from pathlib import Path
from typing import Any

from turret import __version__
from turret.conformance.report import Report
from turret.conformance.results import Result
from turret.conformance.session import SUITE_VERSION
from turret.conformance.stored import read
from turret.spi import SPI_VERSION

FOLDER = Path(__file__).resolve().parents[2] / "docs" / "reference" / "reports"
MAKE = "python scripts/conformance_reports.py"


def stored(folder: Path | None = None) -> dict[str, Report]:
    """File stem -> report, by name. Raises: ConfigError for a file that is no report."""
    return {path.stem: read(path) for path in sorted((folder or FOLDER).glob("*.json"))}


def stem(backend: str) -> str:
    """The name of a backend's file: `cuda:1` lies in cuda-1.json."""
    return backend.replace(":", "-")


def slim(report: Report) -> str:
    """A report of the same schema, one case a line, without what differs in every run and what no page shows."""
    whole = report.as_json()
    kept = ("schema", "backend", "facts", "asked", "started", "seconds", "problems", "audit")
    head = json.dumps({name: whole[name] for name in kept} | {"seconds": round(report.seconds), "advice": []}, indent=1)
    lines = ",\n".join(json.dumps(_result(result)) for result in report.results)
    return f'{head.removesuffix("}").rstrip()},\n "results": [\n{lines}\n ]\n}}\n'


def _result(result: Result) -> dict[str, Any]:
    fell = result.native and result.capability in result.derived
    optional = {
        "message": result.message,
        "budget_used": None if result.budget_used is None else round(result.budget_used, 2),
        "native": result.native,
        "advisory": result.advisory,
    }
    return {
        "case": result.case,
        "capability": result.capability,
        "status": result.status.value,
        **{name: value for name, value in optional.items() if value is not None and value is not False and value != ""},
        "derived": [result.capability] if fell else [],
    }


def outdated(reports: dict[str, Report], case_ids: Collection[str]) -> list[str]:
    """Why each report that is not one of this code's whole suite is none; empty where all are, and there are some."""
    if not reports:
        return [f"no report is stored; run {MAKE} BACKEND..."]
    return [
        f"{name}.json {fault}; run {MAKE} BACKEND..."
        for name, each in reports.items()
        for fault in _faults(name, each, case_ids)
    ]


def _faults(name: str, report: Report, case_ids: Collection[str]) -> list[str]:
    faults = [f"is of backend {report.backend}"] if stem(report.backend) != name else []
    if not report.facts:
        return [*faults, "is of a backend that did not open"]
    current = {
        "suite": f"{SUITE_VERSION[0]}.{SUITE_VERSION[1]}",
        "spi": f"{SPI_VERSION[0]}.{SPI_VERSION[1]}",
        "core": __version__,
    }
    faults += [
        f"was made with {what} {report.facts[what]}, now it is {version}"
        for what, version in current.items()
        if report.facts[what] != version
    ]
    found = {result.case for result in report.results}
    for word, cases in (("lacks", set(case_ids) - found), ("still has", found - set(case_ids))):
        if cases:
            faults.append(f"{word} {len(cases)} case(s), such as {min(cases)}")
    return faults
