"""Safetensors files as mappings of host arrays, read one array at a time and written all or nothing."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from turret.spi import CheckpointError, Host

_WORDS = frozenset(("F64", "F32", "F16", "I64", "I32", "I16", "I8", "U64", "U32", "U16", "U8", "BOOL"))


class ArrayFile(Mapping[str, Host]):
    """The arrays of an open file by name; what NumPy has no dtype for, such as bfloat16, arrives as its bytes."""

    def __init__(self, path: Path, file: Any) -> None:
        self._path, self._file = path, file
        self._names = dict.fromkeys(file.keys())

    def __getitem__(self, name: str) -> Host:
        if name not in self._names:
            raise KeyError(name)
        if self._file.get_slice(name).get_dtype() in _WORDS:
            array: Host = self._file.get_tensor(name)
            return array
        return self._bytes(name)

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)

    @property
    def metadata(self) -> dict[str, str]:
        """The text that was stored beside the arrays."""
        return dict(self._file.metadata() or {})

    def _bytes(self, name: str) -> Host:
        with self._path.open("rb") as file:
            size = int.from_bytes(file.read(8), "little")
            begin, end = json.loads(file.read(size))[name]["data_offsets"]
            file.seek(8 + size + begin)
            return np.frombuffer(file.read(end - begin), np.uint8)


@contextlib.contextmanager
def open_arrays(path: Path) -> Iterator[ArrayFile]:
    """The arrays of a safetensors file. Raises: CheckpointError naming the file."""
    try:
        if not path.is_file():
            got = "is no regular file" if path.exists() else "is not there"
            raise CheckpointError(f"{path} {got}; give a safetensors file")
        with safe_open(path, framework="numpy") as file:
            yield ArrayFile(path, file)
    except SafetensorError as error:
        raise CheckpointError(f"{path}: not a safetensors file ({error}); use another") from error
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read ({error}); use another") from error


def write_arrays(path: Path, arrays: Mapping[str, Host], metadata: Mapping[str, str]) -> None:
    """Writes a safetensors file beside its place, flushes it and renames it.

    Raises: CheckpointError, with what was at `path` as it was.
    """
    beside = path.with_name(f".{path.name}-{os.getpid()}.tmp")
    try:
        save_file(dict(arrays), beside, metadata=dict(metadata))
        beside.chmod(path.parent.stat().st_mode & 0o666)  # the library makes files that only their owner can read
        with beside.open("rb+") as file:
            os.fsync(file.fileno())
        beside.replace(path)
    except (OSError, SafetensorError) as error:
        raise CheckpointError(f"{path}: could not be written ({error}); mend that and write again") from error
    finally:
        with contextlib.suppress(OSError):
            beside.unlink()
