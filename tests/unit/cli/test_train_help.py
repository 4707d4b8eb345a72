"""What `turret train --help` says of defaults is what a run takes."""

from __future__ import annotations

import re

import click

from turret.cli.train import OPTIONS, command
from turret.train import RunConfig


def test_every_default_in_the_help_is_the_default() -> None:
    defaults, shown = RunConfig().to_dict(), {}
    for name, _, text in OPTIONS:
        stated = re.search(r"\[([^\]]*)\]$", text)
        assert stated is not None, name
        shown[name.replace("-", "_")] = stated[1]
    defaults["tokenizer"] = defaults.pop("tokenizer_file")
    assert shown.keys() == defaults.keys() - {"corpus", "capture"}
    for name, value in defaults.items():
        if value is not None and name not in ("corpus", "capture", "log"):
            assert shown[name] == str(value), name
    assert shown["log"].startswith(str(defaults["log"]))


def test_capture_is_on_unless_it_is_turned_off() -> None:
    (option,) = [each for each in command.params if each.name == "capture"]
    assert isinstance(option, click.Option)
    assert option.help is not None and option.help.endswith("[capture]")
    assert option.secondary_opts == ["--no-capture"] and RunConfig().capture
