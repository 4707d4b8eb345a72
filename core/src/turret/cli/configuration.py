"""Configuration of runs on the command line: tables of options, and files that hold the same."""

from __future__ import annotations

import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

Options = tuple[tuple[str, type, str], ...]
"""Name, type and help of each option; the default is said in the help."""


def options(table: Options) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """A decorator that gives a command the options of a table, None where the user gives none."""

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        for name, kind, text in reversed(table):
            function = click.option(f"--{name}", type=kind, default=None, help=text)(function)
        return function

    return decorate


def read_toml(path: Path) -> dict[str, Any]:
    """The values of a TOML file. Raises: ConfigError naming the file."""
    from turret.spi import ConfigError

    try:
        if path.exists() and not path.is_file():  # a pipe would block, a device may never end
            raise ConfigError(f"{path}: the configuration is no regular file; wanted a TOML file")
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(
            f"{path}: the configuration cannot be read ({error.strerror}); check the path after --config"
        ) from error
    except (UnicodeDecodeError, tomllib.TOMLDecodeError, RecursionError) as error:
        raise ConfigError(f"{path}: not a TOML file: {error}") from error
    except ValueError as error:
        raise ConfigError(f"{path}: a number in it has more digits than Python reads; write a smaller one") from error
