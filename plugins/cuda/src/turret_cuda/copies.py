"""Copying many arrays in few launches."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from .arrays import by_value
from .library import X
from .place import THREADS, Place

# As in kernels/copy.cu.
MOST_COPIES, CHUNK_BYTES = 120, 32_768
ROW = np.dtype([(name, np.int64) for name in ("from", "to", "bytes", "first_chunk")])
TABLE = np.dtype([("rows", np.int64), ("row", ROW, MOST_COPIES)])


def copy_many(place: Place, pairs: Sequence[tuple[X, X]]) -> None:
    """Writes the second array of each pair, which is dense and has its shape and dtype, with the first."""
    dense = [(place.dense(x), out) for x, out in pairs if x.size]
    for start in range(0, len(dense), MOST_COPIES):
        some = dense[start : start + MOST_COPIES]
        table, chunks = np.zeros((), TABLE), 0
        table["rows"] = len(some)
        for i, (x, out) in enumerate(some):
            table["row"][i] = x.data.ptr, out.data.ptr, x.nbytes, chunks
            chunks += -(-x.nbytes // CHUNK_BYTES)
        place.hold(array for pair in some for array in pair)
        place.launch("copy", "copy_many", chunks, THREADS, by_value(table))
