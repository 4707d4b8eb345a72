"""Opening what may be no file at all: a pipe, a device or a folder under the name of one."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import BinaryIO


def open_regular(path: Path) -> BinaryIO | None:
    """A regular file, open to read its bytes; None for whatever else is at `path`. Links are followed.

    What was looked at is what is open: nothing can be put in its place between the two.
    Raises: OSError; ValueError for a NUL in the path.
    """
    # Without O_NONBLOCK, opening a pipe that nobody writes to would block for ever. Windows has neither.
    flags = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
    descriptor = os.open(path, flags)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        return None
    return open(descriptor, "rb")
