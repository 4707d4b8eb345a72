"""Writes that survive a killed process and a power cut: flushed to the device, then put in place by one rename."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def sync_file(path: Path) -> None:
    """Wait until the file's bytes are on the device. Raises: OSError."""
    # Windows refuses to flush a handle that cannot write.
    with path.open("rb+") as file:
        os.fsync(file.fileno())


def sync_folder(path: Path) -> None:
    """Wait until the folder's entries (new names, renames, deletions) are on the device. Raises: OSError."""
    if os.name == "nt":  # a folder cannot be opened there; NTFS journals its entries
        return
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_file(path: Path, data: bytes) -> None:
    """Write a file and wait until it is on the device; cut short, it may hold a part of `data`. Raises: OSError."""
    with path.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def replace_file(path: Path, data: bytes) -> None:
    """Give `path` this content: a reader, and a crash at any instant, sees the whole old file or the whole new one.

    Raises: OSError, with the old file untouched.
    """
    beside = partial(path)
    try:
        write_file(beside, data)
        beside.replace(path)
    except OSError:
        beside.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def partial(path: Path) -> Path:
    """Where the unfinished content of `path` is; only a killed writer leaves it there."""
    return path.with_name(f".{path.name}.tmp")


@contextmanager
def scratch_folder(parent: Path) -> Iterator[Path]:
    """A new folder inside `parent`, to write in and rename out of; it is gone at the end. Raises: OSError."""
    with tempfile.TemporaryDirectory(dir=parent, prefix=".saving-", ignore_cleanup_errors=True) as folder:
        yield Path(folder)
