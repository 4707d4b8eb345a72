"""What every written page says in the same words, and foreign text made fit to be shown."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import Any

from ..profiles import GROUPS
from ..report import Report
from ..results import Result, Status
from ..suite import MODULES

ABOUT = (
    "Only `passed` says that the backend did the work and did it right. Budget used is the largest error over what the "
    "rounding analysis of the float64 oracle allows: 100 % is the limit. Native: the plugin's own code. Derived: "
    "composed by turret from the plugin's required slots."
)
FLAGS = ("isolate", "forbid_derived", "forbid_host")


UNSCRIPTED = ("lifecycle", "compile")
"""What is about processes, or about functions that a script cannot hold."""


def visible(text: str) -> str:
    """`text` with everything that a screen would obey instead of show written as an escape.

    Control and format characters, directions of writing and lone surrogates come out as in a Python literal; newlines
    and tabs stay.
    """
    return "".join(
        each if each.isprintable() or each in "\n\t" else each.encode("unicode_escape").decode("ascii") for each in text
    )


def again(result: Result, report: Report) -> str:
    """The command that gives a case of the report alone: as a script, or run again where no script can show it."""
    if result.capability in UNSCRIPTED:
        seed = f" --seed {report.asked['seed']}" if report.asked["seed"] else ""
        return f"turret conformance {shlex.quote(report.backend)} -k {shlex.quote(result.case)}{seed}"
    return repro(result.case, report.backend, report.asked["seed"])


def repro(case: str, backend: str, seed: int) -> str:
    """The command that gives one case alone."""
    flag = f" --seed {seed}" if seed else ""
    return f"turret conformance repro {shlex.quote(case)} --backend {shlex.quote(backend)}{flag}"


def wrong(report: Report) -> list[Result]:
    """Every bad result, those that are only advice last."""
    return sorted((result for result in report.results if result.status.bad), key=lambda result: result.advisory)


def expected(report: Report) -> list[Result]:
    """Every failure that the ledger expects."""
    return [result for result in report.results if result.status is Status.EXPECTED_FAILURE]


def advisory(result: Result) -> str:
    """Why a bad result does not fail the run; empty where it does."""
    return " (advice: newer than the interface this plugin was written for)" if result.advisory else ""


def columns(report: Report) -> list[Status]:
    """The statuses that a table shows: those that occur, and always passed and failed."""
    return [status for status in Status if report.counts[status.value] or status in (Status.PASSED, Status.FAILED)]


def not_executed(report: Report) -> list[tuple[Status, str, list[str]]]:
    """(unsupported or skipped, reason, ids of cases), in the order of the run."""
    found: dict[tuple[Status, str], list[str]] = {}
    for result in report.results:
        if not result.status.ran:
            found.setdefault((result.status, result.message or "no reason given"), []).append(result.case)
    return [(status, reason, ids) for (status, reason), ids in found.items()]


def capabilities(reports: Sequence[Report]) -> list[str]:
    """Every capability of any report, in the suite's order; unknown ones last."""
    names = dict.fromkeys(result.capability for report in reports for result in report.results)
    return sorted(names, key=lambda name: MODULES.index(name) if name in MODULES else len(MODULES))


def when(report: Report) -> str:
    """Day and time of the start."""
    return report.started.replace("T", " ").replace("+00:00", " UTC")


def asked(report: Report) -> str:
    """The choice of cases and the rules of the run in one line."""
    chosen = [f"profile {report.asked['profile']}", f"seed {report.asked['seed']}"]
    chosen += [f"only {each}" for each in report.asked["capabilities"]]
    chosen += [f"pattern {report.asked['pattern']}"] if report.asked["pattern"] else []
    chosen += [f"--{flag.replace('_', '-')}" for flag in FLAGS if report.asked[flag]]
    return ", ".join(chosen)


def versions(facts: dict[str, Any]) -> str:
    """Suite, interface, core, plugin, libraries and device in one line."""
    libraries = ", ".join(f"{name} {version}" for name, version in facts["libraries"].items())
    return (
        f"suite {facts['suite']}, SPI {facts['spi']}, core {facts['core']}, {facts['distribution']} "
        f"{facts['plugin_version'] or '(not installed)'} (for SPI {facts['plugin_spi']}), {libraries}, Python "
        f"{facts['python']}, {facts['platform']}; device {facts['device']} ({facts['device_kind']})"
    )


def maker(name: str, row: dict[str, Any]) -> str:
    """Who computes this capability: the plugin, core's composition, or both."""
    if name in GROUPS:
        return ""
    if not row["native"]:
        return "derived"
    return f"native, {row['fell_to_derived']} derived" if row["fell_to_derived"] else "native"


def manifest_heading(report: Report) -> str:
    """What the corrected manifest is for."""
    return "Corrected manifest" if report.audit.over else "Manifest that claims all that was seen"
