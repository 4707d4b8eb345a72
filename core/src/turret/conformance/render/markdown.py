"""A report as one Markdown page, for a repository, an issue or the summary of a build."""

from __future__ import annotations

import re
from collections.abc import Sequence

from ..report import Report
from ..results import Result
from . import wording

SHOWN_IDS = 5


def page(report: Report) -> str:
    """The whole page. Text that came from the backend stands in code spans and fences that it cannot leave."""
    parts = [
        f"# Conformance of {code(report.backend)}",
        f"Verdict: {code(report.verdict)}",
        "\n".join(_about(report)),
        *([_table(report)] if report.results else []),
        wording.ABOUT,
        *_profiles(report),
        *_listed("Problems of the run", report.problems),
        *_failures(report),
        *_expected(report),
        *_not_executed(report),
        *_listed("Claimed, but not so", report.audit.over),
        *_listed("So, but not claimed", report.audit.under),
        *_manifest(report),
        *_listed("What to make native next", report.advice),
    ]
    return "\n\n".join(parts) + "\n"


def code(text: object) -> str:
    """`text` as a code span on one line, whatever it holds."""
    line = " ".join(wording.visible(str(text)).split())
    if not line:
        return "(empty)"
    ticks = "`" * (max(map(len, re.findall("`+", line)), default=0) + 1)
    space = " " if line.startswith("`") or line.endswith("`") else ""
    return f"{ticks}{space}{line}{space}{ticks}"


def cell(text: object) -> str:
    """A code span that does not end the cell of a table."""
    return code(text).replace("|", "\\|")


def fence(text: str) -> str:
    """`text` as a block that it cannot close."""
    shown = wording.visible(text)
    marks = "`" * max(3, max(map(len, re.findall("`+", shown)), default=0) + 1)
    return f"{marks}text\n{shown}\n{marks}"


def _about(report: Report) -> list[str]:
    lines = [f"- run: {code(wording.asked(report))}, {code(wording.when(report))}, {report.seconds:.1f} s"]
    if report.facts:
        lines.append(f"- device: {code(report.facts['device'])}, kind {code(report.facts['device_kind'])}")
        lines.append(f"- versions: {code(wording.versions(report.facts))}")
    else:
        lines.append("- device: not opened")
    return lines


def _table(report: Report) -> str:
    seen = wording.columns(report)
    head = ["capability", "made by", *(status.value for status in seen), "budget used"]
    rows = []
    for name, row in report.by_capability().items():
        used = "" if row["budget_used"] is None else f"{100 * row['budget_used']:.0f} %"
        rows.append([cell(name), wording.maker(name, row), *(str(row[status.value] or "") for status in seen), used])
    rule = ["---", "---", *("---:" for _ in seen), "---:"]
    return "\n".join(f"| {' | '.join(each)} |" for each in (head, rule, *rows))


def _profiles(report: Report) -> list[str]:
    lines = [
        f"- {code(name)} {'certified' if good else 'does not hold'}" for name, good in report.audit.certified.items()
    ]
    return ["## Profiles", "\n".join(lines)] if lines else []


def _listed(heading: str, lines: Sequence[str]) -> list[str]:
    return [f"## {heading}", "\n".join(f"- {code(line)}" for line in lines)] if lines else []


def _failures(report: Report) -> list[str]:
    found = wording.wrong(report)
    parts = [part for result in found for part in (*_headed(result), fence(wording.again(result, report)))]
    return [f"## Failures ({len(found)})", *parts] if found else []


def _expected(report: Report) -> list[str]:
    found = wording.expected(report)
    return (
        [f"## Expected failures ({len(found)})", *(part for each in found for part in _headed(each))] if found else []
    )


def _headed(result: Result) -> tuple[str, str]:
    return f"### {code(result.case)}: {result.status.value}{wording.advisory(result)}", fence(result.message)


def _not_executed(report: Report) -> list[str]:
    lines = []
    for status, reason, ids in wording.not_executed(report):
        more = f" and {len(ids) - SHOWN_IDS} more" if len(ids) > SHOWN_IDS else ""
        lines.append(f"- {len(ids)} {status.value}: {code(reason)} ({', '.join(map(code, ids[:SHOWN_IDS]))}{more})")
    return ["## Not executed", "\n".join(lines)] if lines else []


def _manifest(report: Report) -> list[str]:
    if not report.audit.manifest:
        return []
    return [f"## {wording.manifest_heading(report)}", fence(report.audit.manifest)]
