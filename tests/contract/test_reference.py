"""Nothing public without its line in docs/reference/."""

from __future__ import annotations

import inspect
import re
import subprocess
import sys
import types
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

import turret
from turret import spi
from turret.cli.app import turret as root_command
from turret.cli.conformance import ExamineOrMore


def page(root: Path, name: str) -> str:
    return (root / "docs" / "reference" / f"{name}.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", ["spi", "cli", "api", "backends", "faults", "cuda_kernels", "device_check"])
def test_generated_pages_are_fresh(root: Path, name: str) -> None:
    command = [sys.executable, "scripts/generate_reference.py", "--check", name]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_every_hook_is_documented(root: Path) -> None:
    hooks = [name for name, thing in vars(spi.hooks).items() if getattr(thing, f"{spi.hooks.PROJECT}_spec", None)]
    assert hooks, "no hook found: the check would be empty"
    text = page(root, "spi")
    assert [name for name in hooks if f"\n{name}(" not in text] == []


def test_every_protocol_method_is_documented(root: Path) -> None:
    protocols = [cls for cls in vars(spi).values() if isinstance(cls, type) and getattr(cls, "_is_protocol", False)]
    assert len(protocols) >= len(spi.REQUIRED_SLOTS) + len(spi.OPTIONAL_SLOTS)
    headings = [line for line in page(root, "spi").splitlines() if line.startswith("#")]
    assert [cls.__name__ for cls in protocols if not any(cls.__name__ in line for line in headings)] == []
    methods = [name for cls in protocols for name in vars(cls) if not name.startswith("_")]
    assert [name for name in methods if not any(line.endswith(f".{name}`") for line in headings)] == []


def test_every_slot_and_every_error_is_documented(root: Path) -> None:
    text = page(root, "spi")
    slots = (*spi.REQUIRED_SLOTS, *spi.OPTIONAL_SLOTS)
    errors = [name for name, cls in vars(spi.errors).items() if isinstance(cls, type) and issubclass(cls, Exception)]
    assert [name for name in slots if f"\n### `{name}`" not in text] == []
    assert [name for name in errors if f"- `{name}`:" not in text] == []


def every_command() -> Iterator[tuple[str, click.Command]]:
    """(words after `turret`, command), sub-commands too."""
    context = click.Context(root_command, info_name="turret")
    for name in root_command.list_commands(context):
        command = root_command.get_command(context, name)
        assert command is not None
        yield name, command
        if isinstance(command, ExamineOrMore):
            yield from ((f"{name} {word}", each) for word, each in command.subcommands().items())


def test_every_command_and_option_is_documented_and_explained(root: Path) -> None:
    sections = re.split(r"(?m)^## ", page(root, "cli"))
    texts = {section.splitlines()[0]: section for section in sections}
    for name, command in every_command():
        assert f"`turret {name}`" in texts
        text = texts[f"`turret {name}`"]
        assert command.help, f"turret {name} says nothing about itself"
        for parameter in command.params:
            if isinstance(parameter, click.Option) and not parameter.hidden:
                assert parameter.help, f"turret {name} {parameter.opts[0]} has no help"
                assert f"`{parameter.opts[0]}" in text or f" {parameter.opts[0]}" in text


def test_every_public_name_is_documented_and_explained(root: Path) -> None:
    text = page(root, "api")
    things = {name: getattr(turret, name) for name in turret.__all__}
    assert [name for name in things if f"## `turret.{name}`" not in text] == []
    assert [name for name, thing in things.items() if not inspect.getdoc(thing)] == []


def test_every_exported_class_and_function_has_a_docstring() -> None:
    packages = [getattr(turret, name) for name in turret.__all__]
    silent = []
    for package in (package for package in packages if isinstance(package, types.ModuleType)):
        for name in getattr(package, "__all__", vars(package)):
            thing = getattr(package, name)
            ours = getattr(thing, "__module__", "").startswith("turret")
            described = inspect.isfunction(thing) or isinstance(thing, type)
            if ours and described and not name.startswith("_") and not vars(thing).get("__doc__", thing.__doc__):
                silent.append(f"{package.__name__}.{name}")
    assert silent == []
