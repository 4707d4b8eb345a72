"""Small text files of unknown origin, read whole and only up to a limit."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from turret.data.tokenizers import not_utf8
from turret.spi.errors import DataError


def read_text(path: Path, most: int) -> str:
    """The text of a UTF-8 file of at most `most` bytes.

    Raises: DataError for a missing, larger or unreadable file, what is no regular file, and what is not UTF-8.
    """
    try:
        # Without O_NONBLOCK, opening a pipe that nobody writes to would block for ever.
        with open(os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK), "rb") as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode):
                raise DataError(f"{path} is no regular file; name a file to read")
            data = file.read(most + 1)
    except (OSError, ValueError) as error:
        raise DataError(f"{path} could not be read ({error})") from error
    if len(data) > most:
        raise DataError(f"{path} has more than {most} bytes, the most that is read")
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise DataError(not_utf8(str(path), data, error.start, 0)) from error
