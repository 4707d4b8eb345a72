"""Safetensors files as mappings of host arrays, read one array at a time and written all or nothing."""

from __future__ import annotations

import contextlib
import functools
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from turret.files import scratch_folder, sync_file, sync_folder
from turret.spi import CheckpointError, Host

_WORDS = frozenset(("F64", "F32", "F16", "I64", "I32", "I16", "I8", "U64", "U32", "U16", "U8", "BOOL"))


class ArrayFile(Mapping[str, Host]):
    """The arrays of an open file by name, each read when it is asked for.

    Raises: CheckpointError naming the array, also for a dtype that NumPy lacks, such as bfloat16: `raw` reads those.
    """

    def __init__(self, path: Path, file: Any) -> None:
        self._path, self._file = path, file
        self._names = dict.fromkeys(file.keys())

    def __getitem__(self, name: str) -> Host:
        if name not in self._names:
            raise KeyError(name)
        with _reading(f"array {name!r:.80}"):
            dtype = self._file.get_slice(name).get_dtype()
            if dtype not in _WORDS:
                raise CheckpointError(f"array {name!r:.80} has dtype {dtype:.40}; wanted one that NumPy has")
            array: Host = self._file.get_tensor(name)
            return array

    def __contains__(self, name: object) -> bool:
        return name in self._names

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)

    @property
    def metadata(self) -> dict[str, str]:
        """The text that was stored beside the arrays."""
        return dict(self._file.metadata() or {})

    def raw(self, name: str) -> Host:
        """The bytes of an array, of whichever dtype it is: uint8 (n,), not to be written to."""
        with _reading(f"array {name!r:.80}"):
            if self._file.get_slice(name).get_dtype() in _WORDS:
                whole: Host = self._file.get_tensor(name)
                return np.ascontiguousarray(whole).reshape(-1).view(np.uint8)
            begin, end = self._places[name]
            with self._path.open("rb") as file:
                file.seek(begin)
                return np.frombuffer(file.read(end - begin), np.uint8)

    @functools.cached_property
    def _places(self) -> dict[str, tuple[int, int]]:
        """Where in the file each array begins and ends."""
        with self._path.open("rb") as file:
            size = int.from_bytes(file.read(8), "little")
            header: dict[str, Any] = json.loads(file.read(size))
        header.pop("__metadata__", None)
        return {
            name: (8 + size + fact["data_offsets"][0], 8 + size + fact["data_offsets"][1])
            for name, fact in header.items()
        }


@contextlib.contextmanager
def open_arrays(path: Path) -> Iterator[ArrayFile]:
    """The arrays of a safetensors file. Raises: CheckpointError naming the file."""
    with contextlib.ExitStack() as stack:
        with _reading(str(path)):
            if not path.is_file():
                got = "is no regular file" if path.exists() else "is not there"
                raise CheckpointError(f"{path} {got}; give a safetensors file")
            arrays = ArrayFile(path, stack.enter_context(safe_open(path, framework="numpy")))
        yield arrays


def write_arrays(path: Path, arrays: Mapping[str, Host], metadata: Mapping[str, str]) -> None:
    """Writes a safetensors file beside its place, flushes it and renames it, so that writers of one path do not mix.

    Raises: CheckpointError, with what was at `path` as it was; where only the flush of its folder failed, the new file.
    """
    if not path.name:
        raise CheckpointError(f"{str(path)!r} names no file; give the path of the file to write")
    try:
        with scratch_folder(path.parent) as folder:
            beside = folder / "arrays"
            beside.touch()
            mode = beside.stat().st_mode & 0o777
            save_file(dict(arrays), beside, metadata=dict(metadata))
            beside.chmod(mode)  # the library makes files that only their owner can read
            sync_file(beside)
            beside.replace(path)
        sync_folder(path.parent)
    except (OSError, ValueError, SafetensorError) as error:  # ValueError: a NUL in the path
        raise CheckpointError(f"{path}: could not be written ({error}); mend that and write again") from error


@contextlib.contextmanager
def _reading(what: str) -> Iterator[None]:
    try:
        yield
    except SafetensorError as error:
        raise CheckpointError(f"{what}: not a safetensors file ({error}); use another") from error
    except (OSError, KeyError, ValueError) as error:
        raise CheckpointError(f"{what}: cannot be read ({error}); use another") from error
