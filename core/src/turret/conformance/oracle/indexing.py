"""Truth of reading and writing rows by int32 indices."""

from __future__ import annotations

import numpy as np

from .arrays import Array, quiet
from .reduction import sum as total


def gather_rows(table: Array, ids: Array, /) -> Array:
    """table: (R, ...), ids of any shape; returns ids.shape + table.shape[1:]."""
    return table[ids]


def gather_last(x: Array, ids: Array, /) -> Array:
    """x: (..., N), ids: (...); returns (...): x[..., ids]."""
    rows, width = ids.size, x.shape[-1]
    places = np.arange(rows) * width + ids.reshape(rows)
    return x.reshape(rows * width)[places].reshape(ids.shape)


@quiet
def scatter_add_rows(base: Array, ids: Array, rows: Array, /, *, donate: bool = False) -> Array:
    """base: (R, ...), ids: (M,), rows: (M, ...): base_r + the sum of rows_m over all m with ids_m = r.

    `donate` is a permission this truth has no use for.
    """
    touched = np.unique(ids)
    if not touched.size:
        return base
    terms = [np.concatenate([base[r : r + 1], rows[np.flatnonzero(ids == r)]]) for r in touched]
    return set_rows(base, touched, np.stack([total(each, axis=0) for each in terms]))


def set_rows(base: Array, ids: Array, rows: Array, /, *, donate: bool = False) -> Array:
    """`base` with rows (M, ...) in the places `ids` (M,); where ids repeat, the last one stands."""
    source = np.arange(base.shape[0])
    source[ids] = base.shape[0] + np.arange(ids.size)
    return np.concatenate([base, rows])[source]
