"""The indexing slot. Index values are the caller's promise: kernels read and write foreign memory for bad ones."""

from __future__ import annotations

import math

from .arrays import INT32, geometry, suffix
from .library import X
from .place import MOST_BLOCKS, THREADS, Place

# What the kernels' sort is built on: tokens of a block, and bits of an id that one pass looks at.
TILE, DIGIT_BITS = 256, 8
SCAN_THREADS = 1024
WIDEST = 16


class CudaIndexing:
    """Additions happen in the order of the tokens, without atomics; of rows set at one id the last stays.

    Launches follow from shapes and addresses, never from values. A donated base is written in place where
    its elements lie in C order.
    """

    def __init__(self, place: Place) -> None:
        self._place = place

    def gather_rows(self, table: X, ids: X, /) -> X:
        place, table, ids = self._place, self._place.dense(table), self._place.dense(ids)
        out = place.empty(ids.shape + table.shape[1:], table.dtype)
        if out.size:
            width, words = _words(table, out)
            place.spread("indexing", f"gather_rows_{width}", ids.size * words, table, ids, out, words, ids.size * words)
        return out

    def gather_last(self, x: X, ids: X, /) -> X:
        place, ids = self._place, self._place.dense(ids)
        out = place.empty(ids.shape, x.dtype)
        if out.size:
            rows = x[(slice(None),) * (x.ndim - 1) + (slice(0, 1),)]
            step = x.strides[-1] // x.dtype.itemsize
            name = f"gather_last_{x.dtype.itemsize}"
            place.spread("indexing", name, out.size, x, ids, out, step, out.size, geometry(rows.shape, rows))
        return out

    def scatter_add_rows(self, base: X, ids: X, rows: X, /, *, donate: bool = False) -> X:
        place, out = self._place, self._own(base, donate)
        if rows.size and base.size:
            sorted_ids, order = self._sorted(place.dense(ids), base.shape[0])
            columns = base.size // base.shape[0]
            threads = min(THREADS, -(-columns // 32) * 32)
            blocks = min(ids.size * -(-columns // threads), MOST_BLOCKS)
            operands = out, place.dense(rows), sorted_ids, order
            place.launch("indexing", f"add_rows_{suffix(base)}", blocks, threads, *operands, ids.size, columns)
        return out

    def set_rows(self, base: X, ids: X, rows: X, /, *, donate: bool = False) -> X:
        place, out = self._place, self._own(base, donate)
        if rows.size and base.size:
            ids, rows = place.dense(ids), place.dense(rows)
            winners = place.empty(base.shape[:1], INT32)
            place.spread("indexing", "unclaim", ids.size, ids, winners, ids.size)
            place.spread("indexing", "claim", ids.size, ids, winners, ids.size)
            width, words = _words(out, rows)
            count = ids.size * words
            place.spread("indexing", f"set_rows_{width}", count, rows, ids, winners, out, words, count)
        return out

    def _own(self, base: X, donate: bool) -> X:
        """What may be written: the base itself where it is donated and each element has a place of its own."""
        takes = donate and base.flags.c_contiguous and self._place.may_write(base)
        return base if takes else self._place.copied(base)

    def _sorted(self, ids: X, bound: int) -> tuple[X, X]:
        """ids, all below `bound`, in rising order, and whose they are: equal ones in the order they had."""
        place, tokens, order = self._place, ids.size, None
        tiles = -(-tokens // TILE)
        blocks, places = min(tiles, MOST_BLOCKS), place.empty((2**DIGIT_BITS, tiles), INT32)
        for shift in range(0, max((bound - 1).bit_length(), 1), DIGIT_BITS):
            of_tile = tokens, tiles, shift
            sorted_ids, sorted_order = place.empty((tokens,), INT32), place.empty((tokens,), INT32)
            place.launch("indexing", "tally", blocks, TILE, ids, places, *of_tile)
            place.launch("indexing", "scan", 1, SCAN_THREADS, places, places.size)
            place.launch("indexing", "arrange", blocks, TILE, ids, order, places, sorted_ids, sorted_order, *of_tile)
            ids, order = sorted_ids, sorted_order
        return ids, order


def _words(table: X, other: X) -> tuple[int, int]:
    """The widest word, in bytes, that rows of both arrays can be moved by, and how many of them a row has."""
    row = math.prod(table.shape[1:]) * table.dtype.itemsize
    width = math.gcd(row, table.data.ptr, other.data.ptr, WIDEST)
    return width, row // width
