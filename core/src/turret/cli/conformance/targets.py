"""Files that a sub-command writes its findings to: looked at before the work, written whole after it."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from pathlib import Path

from turret.spi import ConfigError


def checked(targets: Mapping[str, Path | None]) -> dict[str, Path]:
    """The paths that were given, by flag, and absolute: a plugin may change the working folder.

    Raises: ConfigError for one that cannot be written, and for a file that was given twice.
    """
    found: dict[str, Path] = {}
    taken: dict[str, str] = {}
    for flag, path in targets.items():
        if path is None:
            continue
        try:
            check_writable(path, flag)
            found[flag] = path.absolute()
            real = os.path.realpath(path)
        except OSError as error:
            raise ConfigError(f"{flag} {path}: {error.strerror}; choose another path") from error
        if real in taken and not _is_special(path):
            raise ConfigError(f"{taken[real]} and {flag} are the same file, {path}; give each its own")
        taken[real] = flag
    return found


def check_writable(path: Path, flag: str) -> None:
    """Known before the run and not after it. Raises: ConfigError, OSError."""
    folder = path.parent
    if path.is_dir():
        raise ConfigError(f"{flag} {path} is a folder; give the path of a file")
    if not folder.is_dir():
        raise ConfigError(f"{flag} {path}: there is no folder {folder}; make it first")
    real = os.path.realpath(path)
    if not os.path.isdir(os.path.dirname(real)):
        raise ConfigError(f"{flag} {path} is a link to {real}, and that folder is not there; make it first")
    target = path if path.exists() else folder
    if not os.access(target, os.W_OK):
        raise ConfigError(f"{flag} {path}: no permission to write {target}; choose another path")


def write(path: Path, text: str, flag: str) -> str:
    """All of `text`, or what was there before and, returned, the reason; "" where it is written."""
    try:
        _replace(Path(os.path.realpath(path)), text)
    except OSError as error:
        return f"{flag} {path} is not written: {error.strerror}"
    return ""


def _replace(path: Path, text: str) -> None:
    """Beside it and then in its place; a device or a pipe, or where no file can be made, at once. Raises: OSError."""
    if _is_special(path) or not os.access(path.parent, os.W_OK):
        path.write_text(text, encoding="utf-8")
        return
    part = path.with_name(f".turret-{os.getpid()}.part")
    try:
        part.write_text(text, encoding="utf-8")
        if path.exists():
            shutil.copymode(path, part)
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


def _is_special(path: Path) -> bool:
    return path.exists() and not path.is_file()
