"""The indexing slot over an array API namespace."""

from __future__ import annotations

import math
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from ..arrays import FLOATS
from .dtypes import DTypes
from .matmul import NamespaceMatmul
from .storage import NamespaceStorage

Write = Callable[[Any, Any, Any, bool], Any]


class NamespaceIndexing:
    """Without hooks, writing M rows of R takes a table of hits (R, M): right for any size, quick for small ones."""

    def __init__(
        self,
        xp: SimpleNamespace,
        dtypes: DTypes,
        storage: NamespaceStorage,
        matmul: NamespaceMatmul,
        scatter_add_rows: Write | None,
        set_rows: Write | None,
    ) -> None:
        self._xp, self._dtypes, self._storage, self._matmul = xp, dtypes, storage, matmul
        self._scatter_add_rows = scatter_add_rows or self._composed_scatter_add_rows
        self._set_rows = set_rows or self._composed_set_rows

    def gather_rows(self, table: Any, ids: Any, /) -> Any:
        if len(ids.shape) == 1:
            return self._xp.take(table, ids, axis=0)
        flat = self._xp.reshape(ids, (math.prod(ids.shape),))  # the standard's `take` wants one dimension
        return self._xp.reshape(self._xp.take(table, flat, axis=0), (*ids.shape, *table.shape[1:]))

    def gather_last(self, x: Any, ids: Any, /) -> Any:
        column = self._xp.reshape(self._xp.astype(ids, self._dtypes.index), (*ids.shape, 1))
        return self._xp.reshape(self._xp.take_along_axis(x, column, axis=-1), ids.shape)

    def scatter_add_rows(self, base: Any, ids: Any, rows: Any, /, *, donate: bool = False) -> Any:
        if self._dtypes.is_half(base):
            astype, wide = self._xp.astype, self._dtypes.get("float32")
            total = self._scatter_add_rows(astype(base, wide), ids, astype(rows, wide), True)
            return astype(total, base.dtype)
        return self._scatter_add_rows(base, ids, rows, donate)

    def set_rows(self, base: Any, ids: Any, rows: Any, /, *, donate: bool = False) -> Any:
        return self._set_rows(base, ids, rows, donate)

    def _composed_scatter_add_rows(self, base: Any, ids: Any, rows: Any, donate: bool) -> Any:
        """A product with the table of hits. 0 * inf is NaN there, so that what is not finite travels by itself."""
        xp = self._xp
        hits = xp.astype(self._hits(ids, base.shape[0]), base.dtype)
        if self._dtypes.name(base) not in FLOATS:
            return xp.add(base, self._landed(hits, rows, base))
        total = xp.add(base, self._landed(hits, xp.where(xp.isfinite(rows), rows, 0.0), base))
        for value in (math.inf, -math.inf, math.nan):
            there = xp.equal(xp.equal(rows, rows), False) if math.isnan(value) else xp.equal(rows, value)
            count = self._landed(hits, xp.astype(there, base.dtype), base)
            total = xp.where(xp.less(0.0, count), xp.add(total, value), total)
        return total

    def _landed(self, hits: Any, rows: Any, base: Any) -> Any:
        flat = self._xp.reshape(rows, (rows.shape[0], math.prod(base.shape[1:])))
        return self._xp.reshape(self._matmul.matmul(hits, flat), base.shape)

    def _composed_set_rows(self, base: Any, ids: Any, rows: Any, donate: bool) -> Any:
        """For each row of the base the first new row that lands there, if any: a choice, exact for every value."""
        if 0 in rows.shape:
            return self._storage.copy(base)
        xp = self._xp
        hits = xp.astype(self._hits(ids, base.shape[0]), self._dtypes.get("int32"))
        chosen = xp.take(rows, xp.argmax(hits, axis=1), axis=0)
        is_hit = xp.equal(xp.max(hits, axis=1), 1)
        return xp.where(xp.reshape(is_hit, (base.shape[0],) + (1,) * (len(base.shape) - 1)), chosen, base)

    def _hits(self, ids: Any, size: int) -> Any:
        """Does new row m land on row r: bool (size, M)."""
        rows = self._xp.reshape(self._storage.arange(size), (size, 1))
        return self._xp.equal(rows, self._xp.reshape(ids, (1, ids.shape[0])))
