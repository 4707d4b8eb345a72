"""`turret conformance BACKEND`: run the suite and say what was found."""

from __future__ import annotations

import contextlib
import json
import sys
from pathlib import Path

import click

from turret.conformance.examine import Plan, Request, examine, plan
from turret.conformance.execute import Rules
from turret.conformance.profiles import PROFILES, select
from turret.conformance.render import html, markdown, terminal
from turret.conformance.report import Report

from ..options import NamedPath
from .options import check_writable, seed_option, timeout_option
from .progress import progress


@click.command()
@click.argument("backend", required=False)
@click.option(
    "--profile",
    type=click.Choice(list(PROFILES)),
    default="full",
    show_default=True,
    help="The named set of promises to examine.",
)
@click.option("--capability", "capabilities", multiple=True, metavar="C", help="Only this slot or group; repeatable.")
@click.option(
    "-k", "pattern", default="", metavar="PATTERN", help="Only ids that contain this, or match it with * and ?."
)
@seed_option
@click.option("--isolate", is_flag=True, help="Run every case in a process of its own.")
@timeout_option
@click.option("--forbid-derived", is_flag=True, help="Fail cases whose result turret.derived composed.")
@click.option("--forbid-host", is_flag=True, help="Fail cases whose arrays went through the host inside a call.")
@click.option("--json", "json_to", type=NamedPath(), metavar="FILE", help="Write the report as JSON.")
@click.option("--markdown", "markdown_to", type=NamedPath(), metavar="FILE", help="Write the report as Markdown.")
@click.option("--html", "html_to", type=NamedPath(), metavar="FILE", help="Write the report as one HTML page.")
@click.option("--ledger", type=NamedPath(), metavar="FILE", help="Expected failures, instead of the plugin's own file.")
@click.option("--list", "list_only", is_flag=True, help="Print the ids of the chosen cases and run nothing.")
@click.pass_context
def command(
    ctx: click.Context,
    backend: str | None,
    profile: str,
    capabilities: tuple[str, ...],
    pattern: str,
    seed: int,
    isolate: bool,
    timeout_s: float,
    forbid_derived: bool,
    forbid_host: bool,
    json_to: Path | None,
    markdown_to: Path | None,
    html_to: Path | None,
    ledger: Path | None,
    list_only: bool,
) -> None:
    """Examine BACKEND (`name` or `name:device`): does it keep the contract?

    Exits with 0 where everything holds, with 1 where something failed, nothing was executed or the backend does not
    open, with 2 for a wrong command line. Cases run in a separate process: a crash or a hang is the end of one case.
    """
    if list_only:
        for case in select(profile=profile, capabilities=capabilities, pattern=pattern):
            click.echo(case.id)
        return
    if backend is None:
        raise click.UsageError("no BACKEND to examine; `turret backends` lists what is installed", ctx)
    targets = {"json": json_to, "markdown": markdown_to, "html": html_to}
    for flag, path in targets.items():
        if path is not None:
            check_writable(path, f"--{flag}")
    request = Request(
        backend=backend,
        profile=profile,
        capabilities=capabilities,
        pattern=pattern,
        rules=Rules(seed=seed, forbid_derived=forbid_derived, forbid_host=forbid_host),
        isolate=isolate,
        timeout_s=timeout_s,
        ledger=ledger,
        advise=profile in ("training", "full") and not capabilities and not pattern,
    )
    # A plugin that prints while it is imported must not spoil the result.
    with contextlib.redirect_stdout(sys.stderr):
        planned = plan(request)
    report = _run(planned)
    terminal.show(report)
    pages = {"json": _as_json(report), "markdown": markdown.page(report), "html": html.page([report])}
    for flag, path in targets.items():
        if path is not None:
            path.write_text(pages[flag], encoding="utf-8")
    ctx.exit(0 if report.good else 1)


def _run(planned: Plan) -> Report:
    with progress(len(planned.case_ids), planned.spec) as step:
        return examine(planned, progress=step)


def _as_json(report: Report) -> str:
    return json.dumps(report.as_json(), indent=1) + "\n"
