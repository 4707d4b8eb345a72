"""Packed weights in a safetensors file of our own plain format.

A weight named X is the arrays X.codes and X.scales, with coded scales X.group_scales and X.offset as well, in the
layout of `turret.spi.Packed`. The metadata holds the format's name and version, and `weights`: for each name its shape,
block and scale_code, as JSON.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from turret.registry import OpenBackend, open_backend
from turret.spi import CheckpointError, Host, TurretError

from .array_files import ArrayFile, open_arrays, write_arrays
from .names import require_weights
from .weight import ARRAYS, PackedWeight

FORMAT = "turret-nf4"
VERSION = 1


def save_packed(path: Path | str, weights: Mapping[str, PackedWeight]) -> None:
    """Writes the weights to one file; a reader sees the old file or the whole new one.

    Raises: ConfigError for a name that no file can hold and for a value that is no packed weight; CheckpointError, with
    what was at `path` as it was.
    """
    require_weights(weights)
    arrays: dict[str, Host] = {}
    facts: dict[str, dict[str, Any]] = {}
    for name, weight in weights.items():
        for part, array in weight.arrays().items():
            arrays[f"{name}.{part}"] = array
        facts[name] = {"shape": list(weight.shape), "block": weight.block, "scale_code": weight.scale_code}
    metadata = {"format": FORMAT, "version": str(VERSION), "weights": json.dumps(facts)}
    write_arrays(Path(path), arrays, metadata)


def load_packed(path: Path | str, *, backend: str | OpenBackend | None = None) -> dict[str, PackedWeight]:
    """The weights that `save_packed` wrote, on `backend` (default: the current one), bit for bit.

    Raises: CheckpointError naming the file, the weight and what was got and wanted.
    """
    path, target = Path(path), open_backend(backend)
    with open_arrays(path) as file:
        facts = _facts(path, file)
        expected = {f"{name}.{part}" for name in facts for part in ARRAYS}
        if unknown := sorted(file.keys() - expected):
            raise CheckpointError(f"{path}: array {unknown[0]!r:.80} belongs to no weight of the file; write it anew")
        return {name: _weight(path, file, name, fact, target) for name, fact in facts.items()}


def _weight(path: Path, file: ArrayFile, name: str, fact: Any, target: OpenBackend) -> PackedWeight:
    if not isinstance(fact, dict) or fact.keys() != {"shape", "block", "scale_code"}:
        raise CheckpointError(
            f"{path}: weight {name!r:.80} is described by {fact!r:.80}; wanted shape, block, scale_code"
        )
    try:
        found = {part: file[f"{name}.{part}"] for part in ARRAYS if f"{name}.{part}" in file}
        return PackedWeight.from_arrays(found, **fact, backend=target)
    except (TurretError, TypeError) as error:
        raise CheckpointError(f"{path}: weight {name!r:.80}: {error}; use another file") from error


def _facts(path: Path, file: ArrayFile) -> dict[str, Any]:
    metadata = file.metadata
    if metadata.get("format") != FORMAT:
        raise CheckpointError(
            f"{path}: format {metadata.get('format')!r:.80}, not {FORMAT!r}; turret.quant.bitsandbytes reads files of "
            f"bitsandbytes"
        )
    if metadata.get("version") != str(VERSION):
        raise CheckpointError(
            f"{path}: format version {metadata.get('version')!r:.40}; wanted {VERSION}: install a newer core"
        )
    try:
        facts = json.loads(metadata.get("weights", ""))
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{path}: 'weights' is not valid JSON ({error!s:.80}); use another file") from error
    if not isinstance(facts, dict):
        raise CheckpointError(f"{path}: 'weights' is {type(facts).__name__}; wanted a mapping of names")
    return facts
