"""`turret conformance BACKEND`: run the suite and say what was found."""

from __future__ import annotations

import json
from pathlib import Path

import click

from turret.conformance.examine import Plan, Request, examine, plan
from turret.conformance.execute import Rules
from turret.conformance.profiles import PROFILES, select
from turret.conformance.render import html, markdown, terminal
from turret.conformance.report import Report

from ..options import NamedPath
from .foreign import printing_to_stderr
from .options import seed_option, timeout_option
from .progress import progress
from .targets import checked, write


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
    "-k",
    "pattern",
    default="",
    metavar="PATTERN",
    help="Only ids that contain this, or match it with * and ?; `not PATTERN`: all others.",
)
@seed_option
@click.option("--isolate", is_flag=True, help="Run every case in a process of its own.")
@click.option(
    "--jobs", "-j", type=click.IntRange(1, 64), default=1, show_default=True, help="Processes that run cases at once."
)
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
    jobs: int,
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
        if backend is not None:
            plan(Request(backend=backend))  # a name that is none is an error here too
        for case in select(profile=profile, capabilities=capabilities, pattern=pattern):
            click.echo(case.id)
        return
    if backend is None:
        raise click.UsageError("no BACKEND to examine; `turret backends` lists what is installed", ctx)
    targets = checked({"--json": json_to, "--markdown": markdown_to, "--html": html_to})
    request = Request(
        backend=backend,
        profile=profile,
        capabilities=capabilities,
        pattern=pattern,
        rules=Rules(seed=seed, forbid_derived=forbid_derived, forbid_host=forbid_host),
        isolate=isolate,
        jobs=jobs,
        timeout_s=timeout_s,
        ledger=ledger,
        advise=profile in ("training", "full") and not capabilities and not pattern,
    )
    with printing_to_stderr():
        planned = plan(request)
    report = _run(planned)
    # before anything is shown: who reads that may go away in the middle
    pages = {"--json": _as_json(report), "--markdown": markdown.page(report), "--html": html.page([report])}
    lost = [reason for flag, path in targets.items() if (reason := write(path, pages[flag], flag))]
    terminal.show(report)
    if lost:
        raise click.ClickException("; ".join(lost))
    ctx.exit(0 if report.good else 1)


def _run(planned: Plan) -> Report:
    with progress(len(planned.case_ids), planned.spec) as told:
        return examine(planned, progress=told.result, waiting=told.waiting)


def _as_json(report: Report) -> str:
    return json.dumps(report.as_json(), indent=1) + "\n"
