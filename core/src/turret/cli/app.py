"""The `turret` command: what every call has in common, and how a call ends."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Sequence
from dataclasses import dataclass

import click

from .commands import LazyGroup
from .screen import visible

SUCCESS, FAILURE, USAGE, INTERRUPTED = 0, 1, 2, 130


@dataclass(slots=True)
class Session:
    """What the outermost frame must know about the call it ends."""

    debug: bool = False


def _print_versions(ctx: click.Context, _parameter: click.Parameter, value: bool) -> None:
    if value and not ctx.resilient_parsing:
        from .versions import lines

        click.echo("\n".join(lines()))
        ctx.exit()


@click.group(cls=LazyGroup, invoke_without_command=True, context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--debug", is_flag=True, help="Show the traceback of an error.")
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_print_versions,
    help="Show the versions of core, the backend interface and every plugin.",
)
@click.pass_context
def turret(ctx: click.Context, debug: bool) -> None:
    """Train, run and inspect small transformers on the hardware you have."""
    ctx.ensure_object(Session).debug = debug
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help(), err=True)
        ctx.exit(USAGE)
    from .notices import on_stderr

    ctx.with_resource(on_stderr())


def main(args: Sequence[str] | None = None) -> int:
    """Runs one command line (default: this process's) and returns its exit status.

    0 success; 2 usage or configuration; 130 interrupted; 1 everything else. Errors are one line on stderr.
    """
    _stand_in_for_closed_streams()
    session = Session()
    try:
        status = turret.main(args=args, prog_name="turret", standalone_mode=False, obj=session)
        sys.stdout.flush()
    except click.Abort:
        return INTERRUPTED
    except click.ClickException as error:
        return _end(_usage(error), USAGE if isinstance(error, click.UsageError) else FAILURE, session)
    except BrokenPipeError:
        return _drop_stdout()
    except Exception as error:  # noqa: BLE001 - the last frame: one line for people, the traceback with --debug
        return _report(error, session)
    return status if isinstance(status, int) else SUCCESS


def _report(error: Exception, session: Session) -> int:
    from turret.spi import BackendNotFound, ConfigError, TurretError

    if isinstance(error, TurretError):
        return _end(str(error), USAGE if isinstance(error, ConfigError | BackendNotFound) else FAILURE, session)
    hint = "" if session.debug else "; to see where: turret --debug ..."
    return _end(f"{type(error).__name__}: {error}{hint}", FAILURE, session)


def _usage(error: click.ClickException) -> str:
    ctx = error.ctx if isinstance(error, click.UsageError) else None
    return f"{error.format_message()}" + (f" (see: {ctx.command_path} --help)" if ctx is not None else "")


def _end(text: str, status: int, session: Session) -> int:
    if session.debug:
        traceback.print_exc()
    click.echo("error: " + visible(" ".join(text.split())), err=True)  # of a file, a terminal would obey it
    return status


def _stand_in_for_closed_streams() -> None:
    """Python has None for a stream that the caller closed (`2>&-`), and the next file opened would take its number."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115 - for as long as the process lives


def _drop_stdout() -> int:
    """The reader has gone, as in `turret ... | head -1`: that is its right, and no error."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return FAILURE
