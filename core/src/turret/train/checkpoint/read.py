"""Reading a checkpoint: nothing is returned unless every byte is what the writer wrote."""

from __future__ import annotations

import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from safetensors import SafetensorError, safe_open

from turret.spi import CheckpointError, Host
from turret.train.checkpoint.content import CheckpointContent
from turret.train.checkpoint.manifest import (
    LARGEST_MANIFEST,
    LARGEST_TOKENIZER,
    MANIFEST,
    OPTIMIZER,
    PARAMETERS,
    TOKENIZER,
    Manifest,
    decode,
)
from turret.train.checkpoint.names import FOLDER, POINTER, leftover, step_name, step_of
from turret.train.checkpoint.write import digest_file

_READABLE = frozenset(("F32", "F16", "F64", "I32", "I64", "U8", "BOOL"))


def find_checkpoint(path: Path) -> Path:
    """The checkpoint folder that a user means: itself, or the latest of a run folder. Raises: CheckpointError."""
    with _reading(path):
        if not path.is_dir():
            got = "is a file" if path.exists() else "does not exist"
            raise CheckpointError(f"{path} {got}; give a checkpoint folder (step-...) or a run folder")
        if (path / MANIFEST).exists() or step_of(path.name) is not None or leftover(path) is not None:
            return path
    return _latest(path if path.name == FOLDER else path / FOLDER)


def finished_steps(folder: Path) -> list[int]:
    """Steps of the checkpoints in `folder`, ascending; whether they are good only reading tells."""
    with _reading(folder):
        if not folder.is_dir():
            return []
        found = (step_of(entry.name) for entry in folder.iterdir() if entry.is_dir())
        return sorted(step for step in found if step is not None)


def pointed(folder: Path) -> str | None:
    """What the `latest` file of `folder` says, true or not; None without one. Raises: CheckpointError."""
    place = folder / POINTER
    with _reading(place):
        if not place.exists():
            return None
        _size(place)
        with place.open("rb") as file:
            return file.read(64).decode("utf-8", "replace").strip()


def read_manifest(path: Path) -> Manifest:
    """What a checkpoint says about itself, without touching its arrays. Raises: CheckpointError."""
    path = find_checkpoint(path)
    place = path / MANIFEST
    with _reading(place):
        _refuse_links(path)
        if (size := _size(place)) > LARGEST_MANIFEST:
            raise CheckpointError(f"{place}: {size} bytes, over the limit of {LARGEST_MANIFEST}; not a turret manifest")
        manifest = decode(place.read_bytes(), place)
    named = step_of(path.name)
    if named is not None and named != manifest.step:
        raise CheckpointError(f"{place}: step {manifest.step} in a folder named {path.name}; give it its own name back")
    return manifest


def read_checkpoint(path: Path, *, optimizer: bool = True) -> CheckpointContent:
    """The verified checkpoint at `path` (a checkpoint or a run folder); arrays come in name order.

    optimizer=False, for a model that is only used, leaves the optimizer's file unread and its arrays out.
    Raises: CheckpointError naming the file and what is wrong with it.
    """
    path = find_checkpoint(path)
    manifest = read_manifest(path)
    return CheckpointContent(
        **manifest.facts(),
        parameters=_read_arrays(path / PARAMETERS, manifest),
        optimizer=_read_arrays(path / OPTIMIZER, manifest) if optimizer else {},
        tokenizer_json=_read_text(path / TOKENIZER, manifest) if TOKENIZER in manifest.files else None,
        path=path,
    )


def _latest(folder: Path) -> Path:
    steps = finished_steps(folder)
    if not steps:
        raise CheckpointError(
            f"{folder.parent}: neither a {MANIFEST} nor checkpoints; give a checkpoint or a run folder"
        )
    newest = step_name(steps[-1])
    name = pointed(folder)
    if name is None:
        return folder / newest
    if step_of(name) not in steps:
        raise CheckpointError(
            f"{folder / POINTER}: names {name!r:.80}, which is not there; give a checkpoint: {folder / newest}"
        )
    return folder / name


@contextmanager
def _reading(place: Path) -> Iterator[None]:
    """Turn what the system says about `place` into a CheckpointError."""
    try:
        yield
    except FileNotFoundError as error:
        raise CheckpointError(
            f"{place} is not there (deleted while it was being read?); use another checkpoint"
        ) from error
    except OSError as error:
        raise CheckpointError(f"{place}: cannot be read ({error}); use another checkpoint") from error


def _refuse_links(path: Path) -> None:
    """A link could lead anywhere. Other files that are not listed are never opened, and may stay."""
    for entry in path.iterdir():
        if entry.is_symlink():
            raise CheckpointError(f"{entry}: a link inside a checkpoint; refused: put the real file there")


def _size(path: Path) -> int:
    """Bytes of a regular file; opening a pipe would block for ever."""
    status = path.lstat()
    if not stat.S_ISREG(status.st_mode):
        raise CheckpointError(f"{path}: not a regular file; use another checkpoint")
    return status.st_size


def _read_arrays(path: Path, manifest: Manifest) -> dict[str, Host]:
    _verify(path, manifest)
    with _reading(path):
        return _parse(path)


def _read_text(path: Path, manifest: Manifest) -> str:
    if (size := manifest.files[path.name].bytes) > LARGEST_TOKENIZER:
        raise CheckpointError(f"{path}: {size} bytes, over the limit of {LARGEST_TOKENIZER}; not a turret tokenizer")
    _verify(path, manifest)
    with _reading(path):
        data = path.read_bytes()
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise CheckpointError(f"{path}: not UTF-8 at offset {error.start}; use another checkpoint") from error


def _verify(path: Path, manifest: Manifest) -> None:
    wanted = manifest.files[path.name]
    with _reading(path):
        if (size := _size(path)) != wanted.bytes:
            verb = "truncated" if size < wanted.bytes else "longer than written"
            raise CheckpointError(f"{path}: {verb}: {size} bytes, not {wanted.bytes}; use another checkpoint")
        if (got := digest_file(path)) != wanted:
            raise CheckpointError(
                f"{path}: damaged or edited: SHA-256 {got.sha256[:12]}..., not {wanted.sha256[:12]}...; "
                "use another checkpoint"
            )


def _parse(path: Path) -> dict[str, Host]:
    try:
        with safe_open(path, framework="numpy") as file:
            names = sorted(file.keys())
            for name in names:
                if (dtype := file.get_slice(name).get_dtype()) not in _READABLE:
                    raise CheckpointError(f"{path}: array {name!r:.80} has dtype {dtype}, which turret does not store")
            return {name: file.get_tensor(name) for name in names}
    except SafetensorError as error:
        raise CheckpointError(f"{path}: not a safetensors file ({error}); use another checkpoint") from error
