"""Flash attention as one XLA program of two loops: what runs where Pallas has no compiler.

A tile is some queries of every head against some keys, and the inner loop ends at the last key its queries see. So the
program is of one size for any length, and its memory grows with the length of q, k and v only.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from .arrays import FLOAT32, X, add, choose, div, dot, greater, like, mul, row_max, row_sum, smaller, sub, wide
from .library import lax
from .programs import program

LARGEST, SMALLEST = 128, 32  # queries, and keys, of a tile
SCORED = 1 << 18  # scores of a tile that stay in the processor's cache
SCORES = (((3,), (3,)), ((0, 1), (0, 1)))  # (B, K, R, d) and (B, K, C, d) to (B, K, R, C)
MIX = (((3,), (2,)), ((0, 1), (0, 1)))  # (B, K, R, C) and (B, K, C, d) to (B, K, R, d); (B, K, d, R) to (B, K, d, C)


class Grid(NamedTuple):
    """Sizes of one call. shared: query heads for one key-value head. rows, columns: queries and keys of a tile."""

    batch: int
    queries: int
    keys: int
    kv_heads: int
    shared: int
    offset: int
    rows: int
    columns: int

    def across(self, i: X) -> X:
        """How many tiles of keys tile i of queries sees."""
        last = add(mul(i, self.rows), self.offset + self.rows - 1)
        return smaller(add(div(last, self.columns), 1), -(-self.keys // self.columns))

    def seen(self, i: X, j: X) -> X:
        """bool (1, 1, shared * rows, columns): which keys of tile j which queries of tile i see."""
        shape = self.shared, self.rows, self.columns
        key = add(lax.broadcasted_iota("int32", shape, 2), mul(j, self.columns))
        query = add(lax.broadcasted_iota("int32", shape, 1), add(mul(i, self.rows), self.offset))
        seen = lax.bitwise_and(lax.le(key, query), lax.lt(key, lax.full_like(key, self.keys)))
        return lax.reshape(seen, (1, 1, self.shared * self.rows, self.columns))


def _grid(q: X, k: X, offset: int) -> Grid:
    (b, t, h), (s, kv) = q.shape[:3], k.shape[1:3]
    tile = LARGEST
    while tile > SMALLEST and b * h * tile * tile > SCORED:
        tile //= 2
    rows = _even(t, tile)
    return Grid(b, t, s, kv, h // kv, offset, rows, _even(s, tile * tile // rows))


def _even(count: int, most: int) -> int:
    """The size of as few tiles as hold `count`, all of one size."""
    return -(-count // -(-count // most))


@program("scale", "offset")
def attend(q: X, k: X, v: X, *, scale: float, offset: int) -> tuple[X, X, X]:
    """Output (B, T, H, d), row maxima and row sums (B, H, T)."""
    grid = _grid(q, k, offset)
    keys, values = (_tiles(wide(x), grid.columns) for x in (k, v))

    def rows(i: X, queries: X) -> tuple[X, tuple[X, X, X]]:
        start = (
            lax.full(queries.shape, 0.0, FLOAT32),
            lax.full((*queries.shape[:3], 1), -math.inf, FLOAT32),
            lax.full((*queries.shape[:3], 1), 0.0, FLOAT32),
        )

        def tile(j: X, state: tuple[X, X, X]) -> tuple[X, X, X]:
            mixed, top, total = state
            scores = mul(dot(queries, _at(keys, j), SCORES), scale)
            masked = choose(grid.seen(i, j), scores, lax.full_like(scores, -math.inf))
            highest = greater(top, row_max(masked))
            weights = lax.exp(sub(masked, highest))
            kept = lax.exp(sub(top, highest))
            more = dot(weights, _at(values, j), MIX)
            return add(mul(mixed, kept), more), highest, add(mul(total, kept), row_sum(weights))

        mixed, top, total = lax.fori_loop(0, grid.across(i), tile, start)
        return add(i, 1), (div(mixed, total), top, total)

    _, (out, top, total) = lax.scan(rows, lax.full((), 0, "int32"), _rows(wide(q), grid))
    return like(_tokens(out, grid), q), _statistics(top, grid), _statistics(total, grid)


@program("scale", "offset")
def attend_vjp(dy: X, q: X, k: X, v: X, out: X, top: X, total: X, *, scale: float, offset: int) -> tuple[X, X, X]:
    """Gradients for q, k and v. Source: Dao et al. 2022, appendix B.2."""
    grid = _grid(q, k, offset)
    keys, values = (_tiles(wide(x), grid.columns) for x in (k, v))
    dots = row_sum(mul(wide(dy), wide(out)))
    top, total = (lax.expand_dims(lax.transpose(x, (0, 2, 1)), (3,)) for x in (top, total))
    given = _rows(wide(q), grid), _rows(wide(dy), grid), _rows(top, grid), _rows(total, grid, 1.0), _rows(dots, grid)

    def rows(state: tuple[X, X, X], given: tuple[X, X, X, X, X]) -> tuple[tuple[X, X, X], X]:
        i, dk, dv = state
        queries, incoming, top, total, dots = given
        turned_q, turned_dy = (lax.transpose(x, (0, 1, 3, 2)) for x in (queries, incoming))

        def tile(j: X, state: tuple[X, X, X]) -> tuple[X, X, X]:
            dq, dk, dv = state
            key = _at(keys, j)
            scores = mul(dot(queries, key, SCORES), scale)
            weights = div(lax.exp(sub(scores, top)), total)
            weights = choose(grid.seen(i, j), weights, lax.full_like(weights, 0.0))
            ds = mul(mul(weights, sub(dot(incoming, _at(values, j), SCORES), dots)), scale)
            return (
                add(dq, dot(ds, key, MIX)),
                _added(dk, j, dot(turned_q, ds, MIX)),
                _added(dv, j, dot(turned_dy, weights, MIX)),
            )

        dq, dk, dv = lax.fori_loop(0, grid.across(i), tile, (lax.full_like(queries, 0.0), dk, dv))
        return (add(i, 1), dk, dv), dq

    tiles, b, kv, columns, d = keys.shape
    zeros = lax.full((tiles, b, kv, d, columns), 0.0, FLOAT32)
    (_, dk, dv), dq = lax.scan(rows, (lax.full((), 0, "int32"), zeros, zeros), given)
    return like(_tokens(dq, grid), q), like(_keys(dk, grid), k), like(_keys(dv, grid), v)


def _at(tiles: X, j: X) -> X:
    tile: X = lax.dynamic_index_in_dim(tiles, j, keepdims=False)
    return tile


def _added(tiles: X, j: X, more: X) -> X:
    updated: X = lax.dynamic_update_index_in_dim(tiles, add(_at(tiles, j), more), j, 0)
    return updated


def _whole(x: X, tile: int, value: float = 0.0) -> X:
    """Axis 1 filled up to whole tiles."""
    fill = ((0, 0, 0), (0, -x.shape[1] % tile, 0), (0, 0, 0), (0, 0, 0))
    return lax.pad(x, lax.full((), value, x.dtype), fill)


def _tiles(x: X, columns: int) -> X:
    """(B, S, K, d) to (tiles, B, K, columns, d)."""
    x = _whole(x, columns)
    b, s, kv, d = x.shape
    return lax.transpose(lax.reshape(x, (b, s // columns, columns, kv, d)), (1, 0, 3, 2, 4))


def _keys(x: X, grid: Grid) -> X:
    """(tiles, B, K, d, columns) to (B, S, K, d)."""
    tiles, b, kv, d, columns = x.shape
    x = lax.reshape(lax.transpose(x, (1, 0, 4, 2, 3)), (b, tiles * columns, kv, d))
    return lax.slice_in_dim(x, 0, grid.keys, axis=1)


def _rows(x: X, grid: Grid, value: float = 0.0) -> X:
    """(B, T, H, n) to (tiles, B, K, shared * rows, n)."""
    x = _whole(x, grid.rows, value)
    n = x.shape[-1]
    x = lax.reshape(x, (grid.batch, x.shape[1] // grid.rows, grid.rows, grid.kv_heads, grid.shared, n))
    x = lax.transpose(x, (1, 0, 3, 4, 2, 5))
    return lax.reshape(x, (*x.shape[:3], grid.shared * grid.rows, n))


def _tokens(x: X, grid: Grid) -> X:
    """(tiles, B, K, shared * rows, n) to (B, T, H, n)."""
    tiles, n = x.shape[0], x.shape[-1]
    x = lax.reshape(x, (tiles, grid.batch, grid.kv_heads, grid.shared, grid.rows, n))
    x = lax.transpose(x, (1, 0, 4, 2, 3, 5))
    x = lax.reshape(x, (grid.batch, tiles * grid.rows, grid.kv_heads * grid.shared, n))
    return lax.slice_in_dim(x, 0, grid.queries, axis=1)


def _statistics(x: X, grid: Grid) -> X:
    """(tiles, B, K, shared * rows, 1) to (B, H, T)."""
    return lax.transpose(lax.squeeze(_tokens(x, grid), (3,)), (0, 2, 1))
