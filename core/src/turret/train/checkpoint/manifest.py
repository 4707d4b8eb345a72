"""The manifest: what a checkpoint says about itself, sealed by its own digest."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import turret
from turret.data.subword import MOST_BYTES
from turret.files import strict_json
from turret.spi import CheckpointError
from turret.train.checkpoint.content import FACTS, check_facts

FORMAT = "turret-checkpoint"
VERSION = 1
MANIFEST = "manifest.json"
PARAMETERS = "model.safetensors"
OPTIMIZER = "optimizer.safetensors"
TOKENIZER = "tokenizer.json"
LARGEST_MANIFEST = 16 * 2**20
LARGEST_TOKENIZER = MOST_BYTES
SEAL = "manifest_sha256"

_KEYS = frozenset((*FACTS, "format", "version", "turret", "files", SEAL))
_HEX = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, slots=True, kw_only=True)
class FileRecord:
    """The size and SHA-256 that a file of the checkpoint must have."""

    bytes: int
    sha256: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """A checkpoint's facts without its arrays; the fields of `CheckpointContent`, who wrote it, and its files."""

    model: Mapping[str, Any]
    train: Mapping[str, Any]
    tokenizer: str
    data: Mapping[str, Any]
    step: int
    tokens_seen: int
    position: Mapping[str, Any]
    random: Mapping[str, Any]
    extra: Mapping[str, Any]
    turret: str
    files: Mapping[str, FileRecord]
    path: Path

    def facts(self) -> dict[str, Any]:
        """The fields shared with `CheckpointContent`, by name."""
        return {name: getattr(self, name) for name in FACTS}


def encode(facts: Mapping[str, Any], files: Mapping[str, FileRecord]) -> bytes:
    """The manifest's bytes for checked facts. Raises: CheckpointError if they are too long to be read back."""
    raw: dict[str, Any] = {"format": FORMAT, "version": VERSION, "turret": turret.__version__, **facts}
    raw["files"] = {name: {"bytes": file.bytes, "sha256": file.sha256} for name, file in files.items()}
    raw[SEAL] = seal(raw)
    data = (json.dumps(raw, indent=2, allow_nan=False) + "\n").encode()
    if len(data) > LARGEST_MANIFEST:
        raise CheckpointError(
            f"the manifest would be {len(data)} bytes, over the limit of {LARGEST_MANIFEST}; keep large values as "
            "arrays or outside the checkpoint"
        )
    return data


def seal(raw: Mapping[str, Any]) -> str:
    """SHA-256 of everything but the seal itself, in one canonical spelling."""
    rest = {key: value for key, value in raw.items() if key != SEAL}
    return hashlib.sha256(json.dumps(rest, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()).hexdigest()


def decode(data: bytes, path: Path) -> Manifest:
    """The checked manifest found at `path`. Raises: CheckpointError, whatever the bytes are."""
    try:
        raw = strict_json(data)
        digest = seal(raw) if isinstance(raw, dict) else ""
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{path}: not valid JSON ({_brief(error)}); use another checkpoint") from error
    if not isinstance(raw, dict) or raw.get("format") != FORMAT:
        got = f"format {raw.get('format')!r:.80}" if isinstance(raw, dict) else f"a {type(raw).__name__}"
        raise CheckpointError(f"{path}: {got}, not {FORMAT!r}; this folder was not written by turret")
    _check_version(raw, path)
    if raw.get(SEAL) != digest:
        raise CheckpointError(
            f"{path}: edited or damaged since it was written ({SEAL} differs); use another checkpoint"
        )
    if unknown := sorted(raw.keys() - _KEYS):
        raise CheckpointError(f"{path}: unknown key {unknown[0]!r:.80} for format version {VERSION}")
    check_facts(raw, str(path))
    if not isinstance(raw.get("turret"), str):
        raise CheckpointError(f"{path}: 'turret' must be the version that wrote it")
    return Manifest(**{name: raw[name] for name in FACTS}, turret=raw["turret"], files=_files(raw, path), path=path)


def _check_version(raw: Mapping[str, Any], path: Path) -> None:
    version = raw.get("version")
    if type(version) is not int or version < 1:
        raise CheckpointError(f"{path}: format version {version!r:.80} is not a whole number from 1")
    if version > VERSION:
        raise CheckpointError(
            f"{path}: format version {version!r:.40}, written by turret {raw.get('turret')!r:.40}; this is turret "
            f"{turret.__version__}, which reads up to version {VERSION}: install that version of core or a newer one"
        )


def _files(raw: Mapping[str, Any], path: Path) -> dict[str, FileRecord]:
    listed = raw.get("files")
    if not isinstance(listed, dict):
        raise CheckpointError(f"{path}: 'files' is {type(listed).__name__}, not a mapping")
    for name in listed:
        if re.fullmatch(r"\w[\w.-]*", name) is None:
            raise CheckpointError(f"{path}: the file name {name!r:.80} leads out of the checkpoint; refused")
    if listed.keys() - {TOKENIZER} != {PARAMETERS, OPTIMIZER}:
        raise CheckpointError(
            f"{path}: lists {sorted(listed)!r:.200}, not {PARAMETERS} and {OPTIMIZER}, with or without {TOKENIZER}"
        )
    return {name: _record(name, entry, path) for name, entry in listed.items()}


def _record(name: str, entry: object, path: Path) -> FileRecord:
    if not isinstance(entry, dict) or entry.keys() != {"bytes", "sha256"}:
        raise CheckpointError(f"{path}: the entry of {name} must be 'bytes' and 'sha256'")
    size, digest = entry["bytes"], entry["sha256"]
    if type(size) is not int or size < 0 or not isinstance(digest, str) or _HEX.fullmatch(digest) is None:
        raise CheckpointError(f"{path}: the entry of {name} is not a size and a SHA-256 in lower-case hexadecimal")
    return FileRecord(bytes=size, sha256=digest)


def _brief(error: BaseException) -> str:
    return "nested too deeply" if isinstance(error, RecursionError) else f"{error!s:.120}"
