"""Donating an array to a write, which shows whoever shares its memory."""

from __future__ import annotations

from typing import Any

from ..bench import Bench


def overwrite(bench: Bench, array: Any) -> Any:
    """Donates `array` (rank >= 1) to a write of every row with other values; returns the result."""
    storage = bench.tools.storage
    host = bench.get(array)
    rows = storage.from_host((host == 0).astype(host.dtype), dtype=storage.dtype_of(array))
    bench.donates(array)
    return bench.tools.indexing.set_rows(array, storage.arange(array.shape[0]), rows, donate=True)
