"""Small text files of unknown origin, read whole and only up to a limit."""

from __future__ import annotations

from pathlib import Path

from turret.data.tokenizers import not_utf8
from turret.files import open_regular
from turret.spi.errors import DataError


def read_text(path: Path, most: int) -> str:
    """The text of a UTF-8 file of at most `most` bytes.

    Raises: DataError for a missing, larger or unreadable file, what is no regular file, and what is not UTF-8.
    """
    try:
        if (file := open_regular(path)) is None:
            raise DataError(f"{path} is no regular file; name a file to read")
        with file:
            data = file.read(most + 1)
    except (OSError, ValueError) as error:
        raise DataError(f"{path} could not be read ({error}); check the path and its permissions") from error
    if len(data) > most:
        raise DataError(f"{path} has more than {most} bytes, the most that is read; name another file")
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise DataError(not_utf8(str(path), data, error.start, 0)) from error
