"""Writing one checkpoint: beside its place, flushed to the device, then renamed."""

from __future__ import annotations

import errno
import hashlib
import os
import re
import shutil
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import save_file

from turret.files import sync_file, sync_folder, write_file
from turret.spi import CheckpointError, DTypeError, Host, NonFiniteError
from turret.train.checkpoint.content import CheckpointContent
from turret.train.checkpoint.manifest import (
    LARGEST_TOKENIZER,
    MANIFEST,
    OPTIMIZER,
    PARAMETERS,
    TOKENIZER,
    FileRecord,
    encode,
)
from turret.train.checkpoint.names import aside, step_name

STORED_DTYPES = ("float32", "float16", "float64", "int32", "int64", "uint8", "bool")


def write_checkpoint(folder: Path, content: CheckpointContent) -> Path:
    """Write `folder/step-NNNNNNNN` and return it; a checkpoint of the same step is replaced.

    Killed at any instant, the folder holds what it held before or the finished checkpoint, never a part of one.
    Raises: NonFiniteError, DTypeError or CheckpointError, with every earlier checkpoint as it was.
    """
    facts = content.facts()
    arrays = {
        PARAMETERS: _storable(content.parameters, "parameter"),
        OPTIMIZER: _storable(content.optimizer, "optimizer array"),
    }
    tokenizer = None if content.tokenizer_json is None else _storable_text(content.tokenizer_json)
    target = folder / step_name(content.step)
    partial = aside(target, "tmp")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        sync_folder(folder.parent)
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir()
        files = {name: _write_arrays(partial / name, group) for name, group in arrays.items()}
        if tokenizer is not None:
            files[TOKENIZER] = _write_bytes(partial / TOKENIZER, tokenizer)
        _write_bytes(partial / MANIFEST, encode(facts, files))
        sync_folder(partial)
        _put_in_place(partial, target)
    except OSError as error:
        raise CheckpointError(_explain(error, target, arrays)) from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return target


def digest_file(path: Path) -> FileRecord:
    """Size and SHA-256 of a file, read in blocks. Raises: OSError."""
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256")
        return FileRecord(bytes=file.tell(), sha256=digest.hexdigest())


def _storable(arrays: Mapping[str, Host], what: str) -> dict[str, Host]:
    return {name: _checked(array, f"{what} {name!r}") for name, array in arrays.items()}


def _checked(array: Host, what: str) -> Host:
    if array.dtype.name not in STORED_DTYPES:
        raise DTypeError(f"{what} is {array.dtype}; a checkpoint stores {', '.join(STORED_DTYPES)}: convert it first")
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        raise NonFiniteError(f"{what} holds inf or NaN; not saved: go on from the last checkpoint, with a lower rate")
    # The library copies memory as it lies: strided views and foreign byte orders have to be laid out before.
    return np.asarray(array, dtype=array.dtype.newbyteorder("="), order="C")


def _write_arrays(path: Path, arrays: dict[str, Host]) -> FileRecord:
    try:
        save_file(arrays, path)
    except SafetensorError as error:
        raise _as_os_error(error) from error
    path.chmod(path.parent.stat().st_mode & 0o666)  # the library makes files that only their owner can read
    sync_file(path)
    return digest_file(path)


def _storable_text(text: str) -> bytes:
    try:
        data = text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise CheckpointError(f"the tokenizer has a lone surrogate at character {error.start}; not saved") from error
    if len(data) > LARGEST_TOKENIZER:
        raise CheckpointError(
            f"the tokenizer has {len(data)} bytes, over the limit of {LARGEST_TOKENIZER}; use a smaller vocabulary"
        )
    return data


def _write_bytes(path: Path, data: bytes) -> FileRecord:
    write_file(path, data)
    return FileRecord(bytes=len(data), sha256=hashlib.sha256(data).hexdigest())


def _as_os_error(error: SafetensorError) -> OSError:
    """The library hides the system's error number in its text."""
    number = re.search(r"os error (\d+)", str(error))
    return OSError(int(number[1]), os.strerror(int(number[1]))) if number else OSError(str(error))


def _put_in_place(partial: Path, target: Path) -> None:
    old = aside(target, "old")
    replacing = target.exists()
    if replacing:
        shutil.rmtree(old, ignore_errors=True)
        target.rename(old)
    try:
        partial.rename(target)
    except OSError:
        if replacing:
            old.rename(target)
        raise
    sync_folder(target.parent)
    if replacing:
        shutil.rmtree(old, ignore_errors=True)


def _explain(error: OSError, target: Path, arrays: Mapping[str, Mapping[str, Host]]) -> str:
    needed = sum(array.nbytes for group in arrays.values() for array in group.values())
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return (
            f"{target}: the disk is full (about {needed} bytes needed); earlier checkpoints are intact: free space or "
            "keep fewer checkpoints, then resume"
        )
    return f"{target}: could not be written ({error}); earlier checkpoints are intact: mend that, then resume"
