"""The indexing slot."""

from __future__ import annotations

import numpy as np

from .storage import X, quiet


class MinimalIndexing:
    """Indices are in range by the caller's promise. A donation is permission to write, and may be ignored, as here."""

    def gather_rows(self, table: X, ids: X, /) -> X:
        return np.asarray(np.take(table, ids, axis=0))

    def gather_last(self, x: X, ids: X, /) -> X:
        # One index per row, unlike `take`, which would give every row all of them.
        return np.take_along_axis(x, ids[..., None], axis=-1)[..., 0]

    @quiet
    def scatter_add_rows(self, base: X, ids: X, rows: X, /, *, donate: bool = False) -> X:
        # `total[ids] += rows` would add only one of the rows that share an index. `np.add.at` adds all of them, one
        # after the other: the same bits at every run. Halves accumulate in float32.
        wide = np.float32 if base.dtype == np.float16 else base.dtype
        total = np.array(base, wide, order="C")
        np.add.at(total, ids, rows.astype(wide))
        return total.astype(base.dtype, copy=False)

    def set_rows(self, base: X, ids: X, rows: X, /, *, donate: bool = False) -> X:
        # For repeated indices NumPy keeps the last row; the contract asks for any one of them, whole.
        changed = np.array(base, order="C")
        changed[ids] = rows
        return changed
