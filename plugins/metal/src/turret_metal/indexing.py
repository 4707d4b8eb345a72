"""The indexing slot. Index values are the caller's promise: MLX reads and writes foreign memory for bad ones."""

from __future__ import annotations

import mlx.core as mx

from .arrays import like, wide
from .kernels import rows as kernel
from .stream import Stream, X


class MetalIndexing:
    """Additions happen in one order: one index after the other, on the GPU in a kernel of our own without atomics."""

    def __init__(self, do: Stream) -> None:
        self._do = do

    def gather_rows(self, table: X, ids: X, /) -> X:
        return self._do(mx.take, table, ids, axis=0)

    def gather_last(self, x: X, ids: X, /) -> X:
        do = self._do
        found = do(mx.take_along_axis, x, do(mx.expand_dims, ids, -1), axis=-1)
        return do(mx.squeeze, found, axis=-1)

    def scatter_add_rows(self, base: X, ids: X, rows: X, /, *, donate: bool = False) -> X:
        do = self._do
        if not ids.size or not base.size:
            return base
        wide_base, wide_rows = wide(do, base), wide(do, rows)
        if do.on_gpu:
            return like(do, kernel.add_rows(do, wide_base, ids, wide_rows), base)
        return like(do, do(mx.add, wide_base, do(_added, wide_base, ids, wide_rows)), base)

    def set_rows(self, base: X, ids: X, rows: X, /, *, donate: bool = False) -> X:
        do = self._do
        if not ids.size or not base.size:
            return base
        # Two rows of one index may be written at the same time: give all of them the values of one.
        place = do(mx.put_along_axis, do(mx.zeros, base.shape[:1], mx.int32), ids, do(mx.arange, ids.size), axis=0)
        winners = do(mx.take, rows, do(mx.take, place, ids, axis=0), axis=0)
        at = do.view(mx.broadcast_to, do(mx.reshape, ids, (ids.size, *(1,) * (base.ndim - 1))), rows.shape)
        return do(mx.put_along_axis, base, at, winners, axis=0)


def _added(model: X, ids: X, rows: X, stream: mx.Stream) -> X:
    """Rows added up by index, in the shape of `model`: the gradient of a gather. MLX's scatter takes no stream."""
    _, (made,) = mx.vjp(lambda table: mx.take(table, ids, axis=0, stream=stream), [model], [rows])
    return made
