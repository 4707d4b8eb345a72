"""Adding rows by index on the GPU, the same bits at every run: one thread for each element, one row after the other."""

from __future__ import annotations

import math

import mlx.core as mx

from ..stream import Stream, X
from .source import GROUP, Source, block, kernel

BODY = "\n".join(
    [
        "uint column = thread_position_in_grid.x;",
        "uint row = thread_position_in_grid.y;",
        "size_t columns = base_shape[1];",
        "size_t at = row * columns + column;",
        "T total = base[at];",
        block("for (int i = starts[row]; i < stops[row]; ++i)", ["total += rows[order[i] * columns + column];"]),
        "out[at] = total;",
    ]
)
ADD_ROWS = Source(
    name="turret_add_rows", inputs=("base", "rows", "order", "starts", "stops"), outputs=("out",), body=BODY
)


def add_rows(do: Stream, base: X, ids: X, rows: X) -> X:
    """base (R, ...) with rows (M, ...) added at ids (M,); nothing is empty."""
    count, columns = base.shape[0], math.prod(base.shape[1:])
    made: list[X] = do.view(
        kernel(ADD_ROWS),
        inputs=[
            do(mx.reshape, base, (count, columns)),
            do(mx.reshape, rows, (ids.size, columns)),
            *spans(do, ids, count),
        ],
        template=[("T", base.dtype)],
        grid=(columns, count, 1),
        threadgroup=(min(columns, GROUP), 1, 1),
        output_shapes=[(count, columns)],
        output_dtypes=[base.dtype],
    )
    return do(mx.reshape, made[0], base.shape)


def spans(do: Stream, ids: X, count: int) -> tuple[X, X, X]:
    """The order that sorts ids, and where in it each of `count` rows starts and stops: int32 (M,), (R,), (R,)."""
    order = do(mx.argsort, ids)
    found, every = do(mx.take, ids, order), do(mx.arange, count, dtype=mx.int32)
    starts, stops = (do(mx.searchsorted, found, every, side=side) for side in ("left", "right"))
    order, starts, stops = (do(mx.astype, x, mx.int32) for x in (order, starts, stops))
    return order, starts, stops
