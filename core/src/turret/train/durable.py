"""Writes that survive a killed process and a power cut: flushed to the device, then put in place by one rename."""

from __future__ import annotations

import os
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


def replace_file(path: Path, data: bytes) -> None:
    """Give `path` this content: a reader, and a crash at any instant, sees the whole old file or the whole new one.

    Raises: OSError, with the old file untouched.
    """
    beside = path.with_name(f".{path.name}.tmp")
    try:
        with beside.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        beside.replace(path)
    except OSError:
        beside.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)
