"""The flash attention slot."""

from __future__ import annotations

from typing import Any

import numpy as np

from turret.spi import Flashed

from .arrays import FLOAT64, Host, statistics, suffix
from .library import X
from .place import MOST_BLOCKS, THREADS, Place
from .products import steps
from .storage import cast

# As in kernels/flash_attention.cuh.
BLOCK, WARP = 128, 32
LIE = np.dtype([(name, np.int64) for name in ("batch", "token", "head")])
CALL = np.dtype(
    [(name, LIE) for name in ("q", "k", "v", "dy")]
    + [(name, np.int64) for name in ("batches", "heads", "shared", "queries", "keys", "size", "offset", "parts")]
)


class CudaFlashAttention:
    """Heads are read where they lie, and computed in float32 under halves; float64 keeps float64 statistics too.

    Heads of any size: beyond 128 elements (64 of float64) the parts of a head are made by blocks of their own, each of
    which makes the scores anew.
    """

    def __init__(self, place: Place) -> None:
        self._place = place

    def attend(self, q: X, k: X, v: X, /, *, scale: float, offset: int) -> Flashed[X]:
        place, (b, t, h, _) = self._place, q.shape
        q, k, v = self._readable(q, k, v)
        out = place.empty(q.shape, q.dtype)
        row_max, row_sum = (place.empty((b, h, t), statistics(q)) for _ in range(2))
        tiles = -(-t // _tile(q)) * b * h
        self._launch("attend", q, tiles, _call(q, k, v, None, offset), q, k, v, float(scale), out, row_max, row_sum)
        return Flashed(out, row_max, row_sum)

    def attend_vjp(self, dy: X, q: X, k: X, v: X, saved: Flashed[X], /, *, scale: float, offset: int) -> tuple[X, X, X]:
        place, (b, t, h, _), (s, shared) = self._place, q.shape, k.shape[1:3]
        kind = statistics(q)
        dy, q, k, v = self._readable(dy, q, k, v)
        row_max, row_sum = (place.dense(cast(place, x, kind)) for x in saved[1:])
        call, dots = _call(q, k, v, dy, offset), place.empty((b, h, t), kind)
        self._row_dots(call, dy, place.dense(saved.out), dots)
        dq, dk, dv = (place.empty(x.shape, x.dtype) for x in (q, k, v))
        given = call, dy, q, k, v, float(scale), row_max, row_sum, dots
        self._launch("vjp_queries", q, -(-t // _tile(q)) * b * h, *given, dq)
        self._launch("vjp_keys", q, -(-s // _tile(q, keys=True)) * b * shared, *given, dk, dv)
        return dq, dk, dv

    def _readable(self, *arrays: X) -> tuple[X, ...]:
        """The arrays, and copies of those whose heads have gaps."""
        return tuple(x if x.shape[-1] <= 1 or steps(x)[-1] == 1 else self._place.copied(x) for x in arrays)

    def _row_dots(self, call: Host, dy: X, out: X, dots: X) -> None:
        if dots.size:
            blocks = min(-(-dots.size * WARP // THREADS), MOST_BLOCKS)
            name = f"row_dots_{suffix(dy)}"
            self._place.launch(_file(dy), name, blocks, THREADS, call, dy, out, dots, dots.size)

    def _launch(self, kernel: str, q: X, tiles: int, call: Host, *operands: Any) -> None:
        if tiles:
            name = f"{kernel}_{suffix(q)}_{_width(q)}"
            self._place.launch(_file(q), name, tiles * int(call["parts"]), BLOCK, call, *operands)


def _file(q: X) -> str:
    return f"flash_attention_{suffix(q)}"


def _width(q: X) -> int:
    """Elements of a head that one block computes."""
    return 64 if q.dtype == FLOAT64 or q.shape[-1] <= 64 else 128


def _tile(q: X, *, keys: bool = False) -> int:
    """Queries, or keys, whose results are the work of one block."""
    return 32 if q.dtype == FLOAT64 or (keys and _width(q) == 128) else 64


def _call(q: X, k: X, v: X, dy: X | None, offset: int) -> Host:
    """Sizes and steps as the kernels take them."""
    made = np.zeros((), CALL)
    for name, x in (("q", q), ("k", k), ("v", v), ("dy", dy)):
        if x is not None:
            batch, token, head, _ = steps(x)
            made[name] = batch, token, head
    (made["batches"], made["queries"], made["heads"], made["size"]), made["offset"] = q.shape, offset
    made["keys"], made["shared"] = k.shape[1:3]
    made["parts"] = max(1, -(-q.shape[-1] // _width(q)))
    return made
