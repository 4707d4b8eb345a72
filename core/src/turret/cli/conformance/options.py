"""Options that several of these commands share, and the check of files that they will write."""

from __future__ import annotations

import os
from pathlib import Path

import click

from turret.conformance.runner import TIMEOUT_S
from turret.spi import ConfigError

from ..options import Seconds

seed_option = click.option(
    "--seed", type=click.IntRange(0, 2**32 - 1), default=0, show_default=True, help="Seed of all inputs."
)
timeout_option = click.option(
    "--timeout-s",
    type=Seconds(),
    default=TIMEOUT_S,
    show_default=True,
    metavar="SECONDS",
    help="How long one case may take before it is killed and counted as timed out.",
)


def check_writable(path: Path, flag: str) -> None:
    """Known before the run and not after it. Raises: ConfigError."""
    folder = path.parent
    if path.is_dir():
        raise ConfigError(f"{flag} {path} is a folder; give the path of a file")
    if not folder.is_dir():
        raise ConfigError(f"{flag} {path}: there is no folder {folder}; make it first")
    target = path if path.exists() else folder
    if not os.access(target, os.W_OK):
        raise ConfigError(f"{flag} {path}: no permission to write {target}; choose another path")
