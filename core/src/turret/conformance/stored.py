"""A report in a file: read, and checked as far as anything computes with it."""

from __future__ import annotations

import sys
from pathlib import Path

from turret.spi import ConfigError

from .report import Report

NEEDED_FACTS = frozenset(
    (
        "suite",
        "spi",
        "core",
        "python",
        "platform",
        "distribution",
        "plugin_version",
        "plugin_spi",
        "device",
        "device_kind",
        "native",
        "libraries",
    )
)
NEEDED_ASKED = frozenset(("profile", "capabilities", "pattern", "seed", "isolate", "forbid_derived", "forbid_host"))


def read(path: Path) -> Report:
    """Raises: ConfigError for a file that cannot be read or is no report, and says which part of it is wrong."""
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"report {path}: {error.strerror}; give a file that --json wrote") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path} is no conformance report (not UTF-8); make one with --json") from error
    report = Report.from_json(text, str(path))
    if (fault := _fault(report)) is not None:
        raise ConfigError(f"{path} is no conformance report ({fault}); make one with --json")
    return report


def _fault(report: Report) -> str | None:
    """What is not of its type, or None. The file is JSON: any value may be anything."""
    if not (isinstance(report.facts, dict) and isinstance(report.asked, dict)):
        return "`facts` and `asked` have to be objects"
    if not isinstance(report.backend, str) or not isinstance(report.started, str):
        return "`backend` and `started` have to be texts"
    if report.facts and (missing := NEEDED_FACTS - set(report.facts)):
        return f"`facts` lacks {min(missing)}"
    if missing := NEEDED_ASKED - set(report.asked):
        return f"`asked` lacks {min(missing)}"
    if not _texts(report.asked["capabilities"]):
        return "`asked.capabilities` has to be a list of names"
    if report.facts and not isinstance(report.facts["libraries"], dict):
        return "`facts.libraries` has to be an object"
    if report.facts and not _texts(report.facts["native"]):
        return "`facts.native` has to be a list of names"
    audit = report.audit
    if not isinstance(audit.certified, dict) or not all(
        map(_texts, (audit.over, audit.under, report.problems, report.advice))
    ):
        return "`audit`, `problems` or `advice` has not the form this suite writes"
    for result in report.results:
        used = result.budget_used
        if not (
            isinstance(result.case, str) and isinstance(result.capability, str) and isinstance(result.message, str)
        ):
            return f"a result is not about a case: {result.case!r}"
        number = isinstance(used, int | float) and not isinstance(used, bool)
        if used is not None and not (number and 0 <= used <= sys.float_info.max):
            return f"budget_used of {result.case} is {used!r}"
    if (twice := len(report.results) - len({result.case for result in report.results})) > 0:
        return f"{twice} result(s) are about a case that has one already"
    return None


def _texts(values: object) -> bool:
    return isinstance(values, list) and all(isinstance(each, str) for each in values)
