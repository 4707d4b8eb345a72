"""Reports as one HTML page that needs nothing beside itself: a scoreboard, then every finding per backend."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from typing import Any

from ..report import Report
from ..results import Result, Status
from . import wording
from .style import SHEET


def page(reports: Sequence[Report], title: str = "Conformance") -> str:
    """The whole file, for any number of backends, sorted by name. Works without scripts and without a network."""
    ordered = sorted(reports, key=lambda report: (report.backend, report.started))
    lines = [
        "<!doctype html>",
        '<html lang="en">',
        "<head>",
        '<meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>{_safe(title)}</title>",
        f"<style>\n{SHEET}</style>",
        "</head>",
        "<body>",
        f"<header><h1>{_safe(title)}</h1>",
        f'<p class="about">{_prose(wording.ABOUT)}</p></header>',
        "<main>",
        *(_board(ordered) if ordered else ["<p>There is no report to show.</p>"]),
        *(line for number, report in enumerate(ordered, 1) for line in _findings(number, report)),
        "</main>",
        "</body>",
        "</html>",
    ]
    return "\n".join(lines) + "\n"


def _safe(text: object) -> str:
    return escape(wording.visible(str(text)))


def _breakable(name: str) -> str:
    """An identifier that a narrow screen may break after an underscore."""
    return _safe(name).replace("_", "_<wbr>")


def _prose(text: str) -> str:
    """Our own words, whose backquoted parts are code."""
    return "".join(f"<code>{_safe(part)}</code>" if at % 2 else _safe(part) for at, part in enumerate(text.split("`")))


def _board(reports: Sequence[Report]) -> list[str]:
    tables = [report.by_capability() for report in reports]
    return [
        '<section aria-labelledby="board">',
        '<h2 id="board">Scoreboard</h2>',
        '<div class="scroll" role="region" aria-labelledby="board" tabindex="0">',
        "<table>",
        "<caption><span>One column per backend, one row per capability: cases by outcome, who computes it, and the "
        "largest budget used by a case that passed.</span></caption>",
        f'<thead><tr><th scope="col">backend</th>{"".join(_column(n, each) for n, each in enumerate(reports, 1))}</tr>',
        "</thead>",
        "<tbody>",
        _row("verdict", (_verdict(report) for report in reports)),
        _row("profiles", (_profiles(report) for report in reports)),
        _row("plugin", (_plugin(report) for report in reports)),
        _row("run", (f"{_safe(wording.asked(each))}<br>{_safe(wording.when(each))}" for each in reports)),
        "</tbody>",
        "<tbody>",
        *(
            _row(_breakable(name), (_cell(name, table.get(name)) for table in tables))
            for name in wording.capabilities(reports)
        ),
        "</tbody>",
        "</table>",
        "</div>",
        "</section>",
    ]


def _column(number: int, report: Report) -> str:
    device = (
        f'{_safe(report.facts["device"])} <span class="kind">{_safe(report.facts["device_kind"])}</span>'
        if report.facts
        else "not opened"
    )
    return (
        f'<th scope="col"><a href="#backend-{number}">{_safe(report.backend)}</a><small>device: {device}</small></th>'
    )


def _row(name: str, cells: Iterable[str]) -> str:
    return f'<tr><th scope="row">{name}</th>{"".join(f"<td>{cell}</td>" for cell in cells)}</tr>'


def _verdict(report: Report) -> str:
    word = _mark(report.good, "passed" if report.good else "FAILED")
    return f"{word}<br>{report.executed} of {len(report.results)} cases executed"


def _mark(good: bool, words: str) -> str:
    return f'<strong class="{"good" if good else "bad"}">{"&#10003;" if good else "&#10007;"} {_safe(words)}</strong>'


def _profiles(report: Report) -> str:
    certified = report.audit.certified
    if not certified:
        return '<span class="none">none examined in full</span>'
    words = {name: f"{name} {'certified' if good else 'does not hold'}" for name, good in certified.items()}
    return "<br>".join(_mark(certified[name], text) for name, text in words.items())


def _plugin(report: Report) -> str:
    if not report.facts:
        return '<span class="none">not opened</span>'
    version = report.facts["plugin_version"] or "(not installed)"
    return f"{_safe(report.facts['distribution'])} {_safe(version)}"


def _cell(name: str, row: dict[str, Any] | None) -> str:
    if row is None:
        return '<span class="none">not run</span>'
    made = wording.maker(name, row)
    below = (f"<span>{_safe(made)}</span>" if made else "") + _budget(row["budget_used"])
    return f'<div class="counts">{_counts(row)}</div>' + (f'<div class="made">{below}</div>' if below else "")


def _counts(row: dict[str, Any]) -> str:
    shown = [status for status in Status if row[status.value]]
    return "".join(
        f'<span class="{status.value.replace(" ", "-")}">{row[status.value]} {status.value}</span>' for status in shown
    )


def _budget(used: float | None) -> str:
    if used is None:
        return ""
    width = min(max(used, 0.0), 1.0)
    bar = f'<span class="bar" aria-hidden="true"><i style="width:{width:.0%}"></i></span>'
    return f"<span>{bar}{100 * used:.0f} % of budget</span>"


def _findings(number: int, report: Report) -> list[str]:
    """Everything about one backend that the scoreboard has no room for; open where something is wrong."""
    made_of = wording.versions(report.facts) if report.facts else "not opened"
    return [
        f'<details class="backend" id="backend-{number}"{"" if report.good else " open"}>',
        f"<summary><h2>{_safe(report.backend)}</h2> {_mark(report.good, report.verdict)}</summary>",
        f'<p class="versions">{_safe(made_of)}<br>{_safe(wording.asked(report))}; {report.seconds:.1f} s</p>',
        *_listed("Problems of the run", report.problems),
        *_failures(report),
        *_expected(report),
        *_not_executed(report),
        *_listed("Claimed, but not so", report.audit.over),
        *_listed("So, but not claimed", report.audit.under),
        *_manifest(report),
        *_listed("What to make native next", report.advice),
        "</details>",
    ]


def _listed(heading: str, lines: Sequence[str]) -> list[str]:
    items = [f"<li>{_safe(line)}</li>" for line in lines]
    return [f"<h3>{heading}</h3>", "<ul>", *items, "</ul>"] if items else []


def _failures(report: Report) -> list[str]:
    found = wording.wrong(report)
    parts = [
        part for result in found for part in (_headed(result), f"<pre>{_safe(wording.again(result, report))}</pre>")
    ]
    return [f"<h3>Failures ({len(found)})</h3>", *parts] if found else []


def _expected(report: Report) -> list[str]:
    found = wording.expected(report)
    return [f"<h3>Expected failures ({len(found)})</h3>", *map(_headed, found)] if found else []


def _headed(result: Result) -> str:
    word = f'<span class="{result.status.value.replace(" ", "-")}">{result.status.value}</span>'
    heading = f"<h4><code>{_safe(result.case)}</code> {word}{wording.advisory(result)}</h4>"
    return f"{heading}\n<pre>{_safe(result.message)}</pre>"


def _not_executed(report: Report) -> list[str]:
    items = [
        f'<li><details><summary>{len(ids)} {status.value}: {_safe(reason)}</summary><p class="ids">'
        f"{', '.join(f'<code>{_safe(name)}</code>' for name in ids)}</p></details></li>"
        for status, reason, ids in wording.not_executed(report)
    ]
    return ["<h3>Not executed</h3>", "<ul>", *items, "</ul>"] if items else []


def _manifest(report: Report) -> list[str]:
    if not report.audit.manifest:
        return []
    return [f"<h3>{wording.manifest_heading(report)}</h3>", f"<pre>{_safe(report.audit.manifest)}</pre>"]
