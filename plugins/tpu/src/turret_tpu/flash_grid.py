"""How the Pallas kernels of flash attention cut their operands into tiles, and which tiles see each other."""

from __future__ import annotations

from typing import Any

from .arrays import DTYPES, FLOAT32, X, add, div, greater, like, smaller
from .library import jax, lax
from .pallas import BlockSpec

TILE = 256  # queries, and keys, of a whole tile
STEP = 16  # rows of bfloat16 that a vector register of a TPU holds; of float32 it holds 8
BFLOAT16 = DTYPES["bfloat16"]


class Grid:
    """Sizes of one call in tiles.

    shared: query heads for one key-value head. rows, columns: queries and keys of a tile. down, across: how many tiles
    of queries and of keys there are.
    """

    def __init__(self, q: tuple[int, ...], k: tuple[int, ...], scale: float, offset: int) -> None:
        self.batch, self.queries, self.heads, self.size = q
        self.keys, self.kv_heads = k[1:3]
        self.shared = self.heads // self.kv_heads
        self.scale, self.offset = scale, offset
        self.rows, self.columns = _tile(self.queries), _tile(self.keys)
        self.down, self.across = -(-self.queries // self.rows), -(-self.keys // self.columns)

    def seen(self, i: X, j: X) -> X:
        """bool (columns, rows): which keys of tile j which queries of tile i see."""
        shape = self.columns, self.rows
        key = add(lax.broadcasted_iota("int32", shape, 0), j * self.columns)
        query = add(lax.broadcasted_iota("int32", shape, 1), i * self.rows + self.offset)
        return lax.bitwise_and(lax.le(key, query), lax.lt(key, lax.full_like(key, self.keys)))

    def meet(self, i: X, j: X) -> X:
        """Whether any query of tile i sees any key of tile j."""
        return j * self.columns <= i * self.rows + (self.offset + self.rows - 1)

    def last(self, i: X) -> X:
        """The last tile of keys that tile i of queries sees."""
        return smaller(div(i * self.rows + (self.offset + self.rows - 1), self.columns), self.across - 1)

    def first(self, j: X) -> X:
        """The first tile of queries that sees tile j of keys, or the last one where none does."""
        return smaller(greater(div(j * self.columns - self.offset, self.rows), 0), self.down - 1)


def _tile(count: int) -> int:
    return TILE if count >= TILE else -(-count // STEP) * STEP


def by_query_tiles(grid: Grid) -> tuple[BlockSpec, ...]:
    """Tiles of q, of k, of k turned, of statistics and of a turned output, for programs (head, i, j).

    A tile of keys that is not seen is not fetched: the one before stays.
    """

    def keys(n: X, i: X, j: X) -> X:
        return smaller(j, grid.last(i))

    return (
        BlockSpec((1, grid.rows, grid.size), lambda n, i, j: (n, i, 0)),
        BlockSpec((1, grid.columns, grid.size), lambda n, i, j: (div(n, grid.shared), keys(n, i, j), 0)),
        BlockSpec((1, grid.size, grid.columns), lambda n, i, j: (div(n, grid.shared), 0, keys(n, i, j))),
        BlockSpec((1, 1, grid.rows), lambda n, i, j: (n, 0, i)),
        BlockSpec((1, grid.size, grid.rows), lambda n, i, j: (n, 0, i)),
    )


def by_key_tiles(grid: Grid) -> tuple[BlockSpec, ...]:
    """Tiles of q, of k and of statistics, for programs (key-value head, j, query head of the group and i)."""

    def head(n: X, turn: X) -> X:
        return n * grid.shared + div(turn, grid.down)

    def queries(j: X, turn: X) -> X:
        return greater(lax.rem(turn, lax.full((), grid.down, "int32")), grid.first(j))

    return (
        BlockSpec((1, grid.rows, grid.size), lambda n, j, turn: (head(n, turn), queries(j, turn), 0)),
        BlockSpec((1, grid.columns, grid.size), lambda n, j, turn: (n, j, 0)),
        BlockSpec((1, 1, grid.rows), lambda n, j, turn: (head(n, turn), 0, queries(j, turn))),
    )


def heads(x: X, tile: int) -> X:
    """(B, L, N, d) as (B * N, L, d), L filled up with zeros to whole tiles."""
    b, length, n, d = x.shape
    x = lax.reshape(lax.transpose(x, (0, 2, 1, 3)), (b * n, length, d))
    x = lax.convert_element_type(x, stored(x))
    return lax.pad(x, lax.full((), 0, x.dtype), ((0, 0, 0), (0, -length % tile, 0), (0, 0, 0)))


def tokens(x: X, model: X) -> X:
    """(B * N, L, d) in the shape (B, L, N, d) and the dtype of `model`."""
    b, length, n, d = model.shape
    x = lax.reshape(lax.slice_in_dim(x, 0, length, axis=1), (b, n, length, d))
    return like(lax.transpose(x, (0, 2, 1, 3)), model)


def stored(x: X) -> Any:
    """The dtype in which kernels read and write such values: a TPU's vector registers know no float16."""
    return x.dtype if x.dtype == BFLOAT16 else FLOAT32


def turned(x: X) -> X:
    return lax.transpose(x, (0, 2, 1))


def turned_shape(grid: Grid, q: X) -> Any:
    """The output, turned."""
    return shaped((grid.batch * grid.heads, grid.size, grid.down * grid.rows), q)


def row_shape(grid: Grid) -> Any:
    """Statistics, one for every query of whole tiles."""
    return jax.ShapeDtypeStruct((grid.batch * grid.heads, 1, grid.down * grid.rows), FLOAT32)  # type: ignore[no-untyped-call]


def shaped(shape: tuple[int, ...], model: X) -> Any:
    """What a kernel returns for an operand like `model`."""
    return jax.ShapeDtypeStruct(shape, stored(model))  # type: ignore[no-untyped-call]  # JAX states no types


def filled(x: X, grid: Grid, value: float) -> X:
    """Statistics (B, H, T) as (B * H, 1, whole tiles)."""
    x = lax.reshape(x, (grid.batch * grid.heads, 1, grid.queries))
    fill = (0, grid.down * grid.rows - grid.queries, 0)
    return lax.pad(x, lax.full((), value, FLOAT32), ((0, 0, 0), (0, 0, 0), fill))


def of_rows(x: X, grid: Grid) -> X:
    """(B * H, 1, whole tiles) as (B, H, T)."""
    return lax.reshape(lax.slice_in_dim(x, 0, grid.queries, axis=2), (grid.batch, grid.heads, grid.queries))
