from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import click
import pytest

from turret.cli import app, commands, main
from turret.spi import BackendNotFound, BackendUnavailable, CheckpointError, ConfigError, ShapeError


@pytest.fixture
def failing(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Makes `turret fail` raise a given error."""

    def install(error: BaseException) -> None:
        @click.command()
        def command() -> None:
            raise error

        monkeypatch.setitem(commands.SHORT_HELP, "fail", "Fails.")
        monkeypatch.setitem(sys.modules, "turret.cli.fail", _module(command))

    return install


def _module(command: click.Command) -> Any:
    class Module:
        pass

    module = Module()
    module.command = command  # type: ignore[attr-defined]
    return module


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (ConfigError("width 0"), 2),
        (BackendNotFound("no vulkan"), 2),
        (BackendUnavailable("no driver"), 1),
        (ShapeError("(2, 3)"), 1),
        (CheckpointError("truncated"), 1),
        (click.UsageError("odd words"), 2),
        (click.BadParameter("odd value"), 2),
        (click.ClickException("no"), 1),
        (OSError(28, "No space left on device"), 1),
        (ZeroDivisionError("division by zero"), 1),
        (KeyboardInterrupt(), 130),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, BaseException) else str(value),
)
def test_exit_status_tells_the_kind_of_failure(
    failing: Any, error: BaseException, status: int, capsys: pytest.CaptureFixture[str]
) -> None:
    failing(error)
    assert main(["fail"]) == status
    printed = capsys.readouterr()
    assert printed.out == ""
    assert "Traceback" not in printed.err
    if status != 130:
        assert printed.err.startswith("error: ")
        assert printed.err.count("\n") == 1


def test_a_message_of_many_lines_is_told_in_one(failing: Any, capsys: pytest.CaptureFixture[str]) -> None:
    failing(ConfigError("first\n  second"))
    assert main(["fail"]) == 2
    assert capsys.readouterr().err == "error: first second\n"


def test_an_unexpected_error_says_how_to_see_it_in_full(failing: Any, capsys: pytest.CaptureFixture[str]) -> None:
    failing(ZeroDivisionError("division by zero"))
    assert main(["fail"]) == 1
    text = "error: ZeroDivisionError: division by zero; to see where: turret --debug ...\n"
    assert capsys.readouterr().err == text
    assert main(["--debug", "fail"]) == 1
    full = capsys.readouterr().err
    assert "Traceback" in full
    assert "raise error" in full
    assert full.endswith("error: ZeroDivisionError: division by zero\n")


@pytest.mark.parametrize(
    ("args", "text"),
    [
        (["trian"], "no command 'trian'; did you mean 'train'?"),
        (["xyzzy"], "no command 'xyzzy'; there are: backends, chat, conformance, convert, doctor"),
        (["backends", "--prob"], "--probe"),
        (["doctor", "extra"], "extra"),
        (["doctor", "--time-limit", "soon"], "soon"),
        (["doctor", "--time-limit", "0"], "0"),
        (["--debugg", "doctor"], "--debug"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_wrong_words_exit_with_2_and_point_to_the_right_ones(
    args: list[str], text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(args) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert text in printed.err
    assert "--help)" in printed.err
    assert printed.err.count("\n") == 1


def test_without_a_command_the_help_is_shown_as_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert "Usage: turret" in printed.err


def test_help_lists_every_command_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    out = capsys.readouterr().out
    assert all(f"  {name} " in out for name in commands.SHORT_HELP)


def test_every_command_of_the_table_is_there_and_says_the_same() -> None:
    context = click.Context(app.turret)
    for name in app.turret.list_commands(context):
        command = app.turret.get_command(context, name)
        assert isinstance(command, click.Command)
        assert command.help, f"turret {name} has no help text"


def test_notices_of_the_library_go_to_stderr_only_while_a_command_runs(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import logging

    from turret.cli import notices

    @click.command()
    @click.option("--machine", is_flag=True)
    def command(machine: bool) -> None:
        if machine:
            notices.switch_to_json()
        logging.getLogger("turret").info("chose %s", "cpu")
        click.echo("result")

    monkeypatch.setitem(commands.SHORT_HELP, "speak", "Speaks.")
    monkeypatch.setitem(sys.modules, "turret.cli.speak", _module(command))
    assert main(["speak"]) == 0
    assert capsys.readouterr() == ("result\n", "chose cpu\n")
    assert main(["speak", "--machine"]) == 0
    printed = capsys.readouterr()
    assert json.loads(printed.err) == {"event": "log", "level": "info", "message": "chose cpu"}
    assert logging.getLogger("turret").handlers == []
    assert logging.getLogger("turret").level == logging.NOTSET


def test_version_names_core_the_interface_and_plugins_without_importing_them(site: Any) -> None:
    site.add("loud", plugin="raise SystemExit('imported')")
    done = site.run("-m", "turret", "--version")
    assert done.returncode == 0
    assert done.stderr == ""
    lines = done.stdout.splitlines()
    assert lines[0].startswith("turret ")
    assert lines[1] == "SPI 1.0"
    assert "turret-loud 1.5 (loud)" in lines[2:]


def test_help_imports_no_numpy(site: Any) -> None:
    code = """
        import sys, turret.cli
        turret.cli.main(["--help"])
        print(sorted({"numpy", "rich", "turret.spi"} & set(sys.modules)))
    """
    assert site.python(code).splitlines()[-1] == "[]"


WRITER = """
import sys, types, click
from turret.cli import commands, main
commands.SHORT_HELP["write"] = "Writes."
sys.modules["turret.cli.write"] = module = types.ModuleType("turret.cli.write")
module.command = click.Command("write", callback=lambda: sys.stdout.write("left in the buffer"))
raise SystemExit(main(["write"]))
"""


@pytest.mark.skipif(sys.platform == "win32", reason="pipes close differently there")
@pytest.mark.parametrize("command", [["-m", "turret", "backends"], ["-c", WRITER]], ids=["at once", "at the end"])
def test_a_reader_that_goes_away_is_met_with_silence(command: list[str]) -> None:
    read, write = os.pipe()
    os.close(read)
    environ = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    done = subprocess.run(
        [sys.executable, *command], stdout=write, stderr=subprocess.PIPE, text=True, check=False, env=environ
    )
    os.close(write)
    assert (done.returncode, done.stderr) == (1, "")


def test_the_module_runs_as_the_command_does(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "turret", "nonsense"], capture_output=True, text=True, cwd=tmp_path, check=False
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("error: no command 'nonsense'")
    assert list(tmp_path.iterdir()) == []


def test_an_error_cannot_command_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", "no\x1b[31msuch"]) in (1, 2)
    shown = capsys.readouterr().err
    assert "\x1b" not in shown and "\\x1b[31msuch" in shown
