"""docs/reference/backends.md and backends.html: what the stored conformance reports say, side by side."""

from __future__ import annotations

from typing import Any

from turret.conformance.render import html
from turret.conformance.render.markdown import cell, code
from turret.conformance.render.wording import ABOUT, capabilities, maker, versions, when
from turret.conformance.report import Report
from turret.conformance.results import Status

from . import reports

HEAD = """\
# Backends

What the conformance suite found, from the reports in [reports/](reports). [backends.html](backends.html) shows the
same with every finding, reason and budget in full.
"""

REGENERATE = f"""\
## How to make this page again

On a machine that has the devices, after any change of the suite, the interface, core's version or a backend:

```text
{reports.MAKE} BACKEND...    # runs the whole suite, stores slim reports, writes both pages
{reports.MAKE} --check       # which stored reports are not of this code
turret conformance diff docs/reference/reports/BACKEND.json NEW.json
```
"""
TITLE = "Conformance of backends"


def page() -> str:
    """The Markdown page."""
    found = sorted(reports.stored().values(), key=lambda report: report.backend)
    shown = [_table(found), ABOUT, *_versions(found)] if found else ["No report is stored."]
    return "\n\n".join(part.strip() for part in (HEAD, *shown, REGENERATE)) + "\n"


def scoreboard() -> str:
    """The HTML page."""
    return html.page(list(reports.stored().values()), title=TITLE)


def _table(found: list[Report]) -> str:
    tables = [report.by_capability() for report in found]
    rows = [
        ["", *(cell(report.backend) for report in found)],
        ["---", *("---" for _ in found)],
        ["verdict", *("passed" if report.good else "FAILED" for report in found)],
        ["device", *(_device(report) for report in found)],
        ["executed", *(f"{report.executed} of {len(report.results)}" for report in found)],
        ["certified", *(_certified(report) for report in found)],
        *([cell(name), *(_found(name, table) for table in tables)] for name in capabilities(found)),
    ]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def _device(report: Report) -> str:
    return f"{cell(report.facts['device'])}, kind {cell(report.facts['device_kind'])}" if report.facts else "not opened"


def _certified(report: Report) -> str:
    return ", ".join(name for name, good in report.audit.certified.items() if good) or "none"


def _found(name: str, table: dict[str, dict[str, Any]]) -> str:
    """`48 passed, native`: every status that occurs, and who computes it."""
    if name not in table:
        return "not run"
    row = table[name]
    parts = [f"{row[status.value]} {status.value}" for status in Status if row[status.value]]
    return ", ".join([*parts, *filter(None, [maker(name, row)])])


def _versions(found: list[Report]) -> list[str]:
    lines = [f"- {code(each.backend)}, {when(each)}: {code(versions(each.facts))}" for each in found if each.facts]
    return ["## Versions", "\n".join(lines)]
