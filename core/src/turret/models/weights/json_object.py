"""Objects in JSON that come with model files, read whole, only up to a limit, and strictly."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from turret.files import strict_json
from turret.spi import CheckpointError

from .mapped_file import MappedFile


def read_object(path: Path, most: int) -> dict[str, Any]:
    """The object in a file of at most `most` bytes. Raises: CheckpointError, also as `parse_object`."""
    file = MappedFile(path)
    if file.size > most:
        raise CheckpointError(f"{path}: has {file.size} bytes; wanted at most {most}: give another file")
    return parse_object(path, file.bytes()[:])


def parse_object(path: Path, raw: bytes) -> dict[str, Any]:
    """JSON with an object outermost. Raises: CheckpointError for anything else, and for a key that is there twice."""
    try:
        value = strict_json(raw)
    except ValueError as error:
        raise CheckpointError(f"{path}: got JSON that cannot be read ({error!s:.80}); fetch the file again") from error
    if not isinstance(value, dict):
        raise CheckpointError(f"{path}: got JSON with a {type(value).__name__} outermost; wanted an object")
    return value
