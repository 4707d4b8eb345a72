"""A regular file mapped into memory to be read, and its floats as float32."""

from __future__ import annotations

import mmap
import os
from pathlib import Path

import numpy as np
import numpy.typing as npt

from turret.files import open_regular
from turret.spi import CheckpointError, Host

FLOATS = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "BF16": "<u2"}
"""The kinds that widen or round to float32, and the dtype that their bytes are read with."""


class MappedFile:
    """The bytes of a file. Nobody may shorten the file while it is open: the system ends a process that reads on.

    Raises: CheckpointError for what is missing, empty, no regular file or cannot be opened; a pipe does not block.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._map: mmap.mmap | None = _map(path)
        self.size = len(self._map)

    def bytes(self) -> mmap.mmap:
        """The whole file; a slice of it is a copy. Raises: CheckpointError for a closed file."""
        if self._map is None:
            raise CheckpointError(f"{self.path}: the file has been closed; open it again to read from it")
        return self._map

    def array(self, begin: int, count: int, dtype: npt.DTypeLike) -> Host:
        """`count` values from byte `begin` on: (count,), a view that is not to be written to nor to be handed out."""
        return np.frombuffer(self.bytes(), dtype, count, begin) if count else np.empty(0, dtype)

    def floats(self, begin: int, count: int, kind: str) -> Host:
        """`count` values of a kind of `FLOATS` from byte `begin` on: float32 (count,), the caller's own."""
        values = self.array(begin, count, FLOATS[kind])
        if kind == "BF16":
            wide = values.astype(np.uint32)
            wide <<= 16
            return wide.view(np.float32)
        with np.errstate(over="ignore", invalid="ignore"):
            return values.astype(np.float32)

    def close(self) -> None:
        """Lets go of the mapping, which ends with the last view of it."""
        self._map = None


def _map(path: Path) -> mmap.mmap:
    try:
        if (file := open_regular(path)) is None:
            raise CheckpointError(f"{path}: got no regular file; wanted a model file")
        with file:
            if not file.seek(0, os.SEEK_END):
                raise CheckpointError(f"{path}: the file is empty; fetch it again")
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except FileNotFoundError as error:
        raise CheckpointError(f"{path}: there is no such file; give the path of a model file") from error
    except (OSError, ValueError) as error:  # ValueError: a NUL in the path
        raise CheckpointError(f"{path}: cannot be read ({error}); mend that or give another file") from error
