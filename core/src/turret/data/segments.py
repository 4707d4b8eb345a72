"""The pieces a corpus is made of: files that are mapped on demand, and text held in memory."""

from __future__ import annotations

import mmap
import os
import sys
import threading
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import numpy as np

from turret.data.tokenizers import Bytes
from turret.files import open_regular
from turret.spi.errors import DataError

CHUNK_BYTES = 1 << 20
MAX_OPEN_MAPS = 64


class Segment(Protocol):
    """A run of bytes of known size."""

    @property
    def name(self) -> str:
        """What manifests and messages call it."""
        ...

    @property
    def path(self) -> str:
        """Where it was found."""
        ...

    @property
    def size(self) -> int:
        """Bytes."""
        ...

    def copy_into(self, target: Bytes, start: int) -> None:
        """Fills `target` with the bytes from `start` on; the caller keeps it inside `size`.

        Raises: DataError when the bytes are no longer there.
        """
        ...

    def chunks(self) -> Iterator[bytes]:
        """All bytes in order, about 1 MiB at a time, without mapping.

        Raises: DataError when the bytes cannot be read or are not as many as they were.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldText:
    """Bytes in memory, for texts that no file holds."""

    name: str
    path: str
    data: bytes = field(repr=False)

    @property
    def size(self) -> int:
        return len(self.data)

    def copy_into(self, target: Bytes, start: int) -> None:
        target[:] = np.frombuffer(self.data, np.uint8, len(target), start)

    def chunks(self) -> Iterator[bytes]:
        for start in range(0, len(self.data), CHUNK_BYTES):
            yield self.data[start : start + CHUNK_BYTES]


class FileMaps:
    """Keeps at most `limit` files mapped, the latest used; safe to use from several threads.

    A map holds a file descriptor, so a folder of ten thousand files cannot be mapped at once.
    """

    def __init__(self, limit: int = MAX_OPEN_MAPS) -> None:
        self._limit = limit
        self._open: OrderedDict[FileSegment, mmap.mmap] = OrderedDict()
        self._lock = threading.Lock()

    def copy(self, file: FileSegment, target: Bytes, start: int) -> None:
        """Fills `target` from the file's bytes at `start`."""
        with self._lock:
            mapped = self._open.get(file)
            if mapped is None:
                mapped = self._open[file] = _map(file)
                if len(self._open) > self._limit:
                    self._open.popitem(last=False)[1].close()
            self._open.move_to_end(file)
            # Touching a page that the file no longer has kills the process with SIGBUS, so ask before each read.
            if (size := mapped.size()) != file.size:
                raise DataError(_changed(file, f"it has {size} bytes"))
            target[:] = np.frombuffer(mapped, np.uint8, len(target), start)

    def close(self) -> None:
        """Unmaps everything; a later read maps again."""
        with self._lock:
            while self._open:
                self._open.popitem()[1].close()


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class FileSegment:
    """A regular file as it was when it was opened: a different size or modification time is an error later.

    Identity is equality, which keeps looking up its map cheap.
    """

    name: str
    path: str
    size: int
    modified_ns: int
    maps: FileMaps = field(repr=False)

    @classmethod
    def of(cls, path: Path, name: str, maps: FileMaps) -> FileSegment:
        """Raises: DataError for what is missing, unreadable or not a regular file."""
        try:
            if (file := open_regular(path)) is None:
                raise DataError(f"corpus {path} is not a regular file; name text files or folders of them")
            with file:
                found = os.fstat(file.fileno())
        except FileNotFoundError as error:
            raise DataError(f"corpus {path} does not exist; check the path") from error
        except (OSError, ValueError) as error:
            raise DataError(_unreadable(str(path), error)) from error
        return cls(name=name, path=str(path), size=found.st_size, modified_ns=found.st_mtime_ns, maps=maps)

    def copy_into(self, target: Bytes, start: int) -> None:
        self.maps.copy(self, target, start)

    def chunks(self) -> Iterator[bytes]:
        count = 0
        try:
            with open(self.path, "rb") as stream:
                while chunk := stream.read(CHUNK_BYTES):
                    count += len(chunk)
                    yield chunk
        except OSError as error:
            raise DataError(_unreadable(self.path, error)) from error
        if count != self.size:
            raise DataError(_changed(self, f"it has {count} bytes"))


def _map(file: FileSegment) -> mmap.mmap:
    try:
        with open(file.path, "rb") as stream:
            found = os.fstat(stream.fileno())
            if found.st_size != file.size:
                raise DataError(_changed(file, f"it has {found.st_size} bytes"))
            if found.st_mtime_ns != file.modified_ns:
                raise DataError(_changed(file, "it was written to"))
            mapped = mmap.mmap(stream.fileno(), file.size, access=mmap.ACCESS_READ)
    except (OSError, ValueError) as error:
        raise DataError(_unreadable(file.path, error)) from error
    if sys.platform != "win32":
        # Windows are small and anywhere: reading ahead made a cold one take milliseconds instead of microseconds.
        mapped.madvise(mmap.MADV_RANDOM)
    return mapped


def _changed(file: FileSegment, what: str) -> str:
    return (
        f"corpus {file.path} changed while it was in use: {what}, it had {file.size} when it was opened; "
        "leave the files of a run alone, and start again from a copy"
    )


def _unreadable(path: str, error: Exception) -> str:
    return f"cannot read corpus {path}: {error}; check the path and its permissions"
