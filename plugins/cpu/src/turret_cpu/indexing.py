"""The indexing slot."""

from __future__ import annotations

import math

import numpy as np

from turret.spi import DataError

from .arrays import X, dense, kernel_ready
from .kernels.positions import add_rows
from .threads import POOL


def check_range(ids: X, size: int, what: str) -> None:
    """Keeps a kernel from writing outside its arrays. Raises: DataError."""
    if ids.size and (int(ids.min()) < 0 or int(ids.max()) >= size):
        raise DataError(f"{what} from {ids.min()} to {ids.max()}, wanted 0 to {size - 1}; check the token ids")


class CpuIndexing:
    """Additions happen in the order of the indices, whatever the number of threads. Bad indices raise DataError."""

    def gather_rows(self, table: X, ids: X, /) -> X:
        check_range(ids, table.shape[0], "row indices")
        return np.asarray(np.take(table, ids, axis=0))  # one element alone would be a scalar

    def gather_last(self, x: X, ids: X, /) -> X:
        check_range(ids, x.shape[-1], "indices")
        return np.asarray(np.take_along_axis(x, ids[..., None], axis=-1)[..., 0])

    def scatter_add_rows(self, base: X, ids: X, rows: X, /, *, donate: bool = False) -> X:
        check_range(ids, base.shape[0], "row indices")
        if base.dtype == np.float16:  # halves accumulate in float32
            wide = self.scatter_add_rows(base.astype(np.float32), ids, rows.astype(np.float32), donate=True)
            return wide.astype(np.float16)
        out = _owned(base, donate)
        if not ids.size:
            return out
        if kernel_ready(out) and out.flags.carray:
            columns = math.prod(out.shape[1:])
            POOL.run(add_rows, 0.2 * rows.size, out, dense(ids), dense(rows), ids.size, columns)
            return out
        with np.errstate(all="ignore"):
            np.add.at(out, ids, rows)
        return out

    def set_rows(self, base: X, ids: X, rows: X, /, *, donate: bool = False) -> X:
        check_range(ids, base.shape[0], "row indices")
        out = _owned(base, donate)
        out[ids] = rows
        return out


def _owned(base: X, donate: bool) -> X:
    return base if donate and base.flags.writeable else np.array(base, order="C")
