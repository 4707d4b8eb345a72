"""Writing a safetensors file one tensor at a time, so that no more than one has to be on the host."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np

from turret.spi import Host, NonFiniteError, Shape

Waiting = tuple[Shape, Callable[[], Host]]
"""The shape of a tensor, and what makes it."""


def write_tensors(path: Path, tensors: Mapping[str, Waiting]) -> None:
    """Writes tensors as float32 in their order; each is made when it is its turn.

    Raises: NonFiniteError naming the tensor, OSError; what was written is no whole file then.
    """
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    begin = 0
    for name, (shape, _) in tensors.items():
        end = begin + 4 * math.prod(shape)
        header[name] = {"dtype": "F32", "shape": list(shape), "data_offsets": [begin, end]}
        begin = end
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for name, (shape, make) in tensors.items():
            array = np.ascontiguousarray(make(), dtype="<f4")
            assert array.shape == tuple(shape), name
            require_finite(array, f"tensor {name!r}")
            file.write(array.data)


def require_finite(array: Host, what: str) -> None:
    """Raises: NonFiniteError saying how many values of `what` are NaN or infinite."""
    if array.size and not (np.isfinite(array.min()) and np.isfinite(array.max())):
        bad = array.size - int(np.isfinite(array).sum())
        raise NonFiniteError(f"{what} has {bad} values that are NaN or infinite in float32; wanted finite numbers")
