"""Flash attention as Pallas kernels: what runs on a TPU, and, interpreted, on PJRT's CPU device.

Every tile of scores is turned: keys in its rows, queries in its columns. So what belongs to a query (its maximum, its
sum) lies along the lanes, as it is stored, and no kernel has to turn an operand: XLA does it beforehand.
"""

from __future__ import annotations

import functools
import math
from typing import Any

from .arrays import FLOAT32, X, add, choose, div, dot, greater, like, mul, sub, wide
from .flash_grid import (
    BFLOAT16,
    Grid,
    by_key_tiles,
    by_query_tiles,
    filled,
    heads,
    of_rows,
    row_shape,
    shaped,
    tokens,
    turned,
    turned_shape,
)
from .library import lax
from .pallas import VMEM, CompilerParams, GridSpec, pallas_call, program_id, when
from .programs import program

WIDEST = 512  # elements of a head up to which the tiles fit a TPU's memory for vectors
IN_ORDER = CompilerParams(dimension_semantics=("parallel", "parallel", "arbitrary"))
TURNED = (((1,), (1,)), ((), ()))  # (m, d) and (n, d) to (m, n)
STRAIGHT = (((1,), (0,)), ((), ()))  # (m, n) and (n, d) to (m, d)

Ref = Any  # a window on a tile in a TPU's memory: read and written by index


def takes(q: X) -> bool:
    """Whether the kernels take queries of this shape."""
    return q.size > 0 and q.shape[-1] <= WIDEST


@program("scale", "offset", "interpret")
def attend(q: X, k: X, v: X, *, scale: float, offset: int, interpret: bool) -> tuple[X, X, X]:
    """Output (B, T, H, d), row maxima and row sums (B, H, T)."""
    grid = Grid(q.shape, k.shape, scale, offset)
    by_query, by_key, by_key_turned, by_row, by_query_turned = by_query_tiles(grid)
    out, row_max, row_sum = pallas_call(
        functools.partial(_attend, grid),
        grid_spec=GridSpec(
            grid=(grid.batch * grid.heads, grid.down, grid.across),
            in_specs=[by_query, by_key, by_key_turned],
            out_specs=[by_query_turned, by_row, by_row],
            scratch_shapes=[VMEM(shape, FLOAT32) for shape in ((grid.size, grid.rows), (1, grid.rows), (1, grid.rows))],
        ),
        out_shape=[turned_shape(grid, q), *[row_shape(grid)] * 2],
        compiler_params=IN_ORDER,
        interpret=interpret,
        name="flash_attend",
    )(heads(q, grid.rows), heads(k, grid.columns), turned(heads(v, grid.columns)))
    return tokens(turned(out), q), of_rows(row_max, grid), of_rows(row_sum, grid)


def _attend(
    grid: Grid, q: Ref, k: Ref, v: Ref, out: Ref, row_max: Ref, row_sum: Ref, mixed: Ref, top: Ref, total: Ref
) -> None:
    i, j = program_id(1), program_id(2)

    @when(j == 0)
    def start() -> None:
        mixed[...] = lax.full(mixed.shape, 0.0, FLOAT32)
        top[...] = lax.full(top.shape, -math.inf, FLOAT32)
        total[...] = lax.full(total.shape, 0.0, FLOAT32)

    @when(grid.meet(i, j))
    def tile() -> None:
        scores = mul(_turned_product(k[0], q[0]), grid.scale)
        masked = choose(grid.seen(i, j), scores, lax.full_like(scores, -math.inf))
        # every query sees key 0, in the first tile: from there on no maximum is infinite
        highest = greater(top[...], lax.expand_dims(lax.reduce_max(masked, (0,)), (0,)))
        weights = lax.exp(sub(masked, highest))
        kept = lax.exp(sub(top[...], highest))
        total[...] = add(mul(total[...], kept), _sum_of_rows(weights))
        mixed[...] = add(mul(mixed[...], kept), dot(wide(v[0]), weights, STRAIGHT))
        top[...] = highest

    @when(j == grid.across - 1)
    def end() -> None:
        out[0] = like(div(mixed[...], total[...]), out)
        row_max[0], row_sum[0] = top[...], total[...]


@program("scale", "offset", "interpret")
def attend_vjp(
    dy: X, q: X, k: X, v: X, out: X, row_max: X, row_sum: X, *, scale: float, offset: int, interpret: bool
) -> tuple[X, X, X]:
    """Gradients for q, k and v."""
    grid = Grid(q.shape, k.shape, scale, offset)
    dots = lax.transpose(lax.reduce_sum(mul(wide(dy), wide(out)), (3,)), (0, 2, 1))
    queries, incoming = heads(q, grid.rows), heads(dy, grid.rows)
    keys, values = heads(k, grid.columns), heads(v, grid.columns)
    # a query that only fills its tile has weights of 1 and an incoming gradient of 0
    rows = [filled(x, grid, value) for x, value in ((row_max, 0.0), (row_sum, 1.0), (dots, 0.0))]
    by_query, by_key, by_key_turned, by_row, by_query_turned = by_query_tiles(grid)
    dq = pallas_call(
        functools.partial(_vjp_queries, grid),
        grid_spec=GridSpec(
            grid=(grid.batch * grid.heads, grid.down, grid.across),
            in_specs=[by_query, by_query, by_key, by_key, by_key_turned, by_row, by_row, by_row],
            out_specs=by_query_turned,
            scratch_shapes=[VMEM((grid.size, grid.rows), FLOAT32)],
        ),
        out_shape=turned_shape(grid, q),
        compiler_params=IN_ORDER,
        interpret=interpret,
        name="flash_vjp_queries",
    )(queries, incoming, keys, values, turned(keys), *rows)
    by_query, by_key, by_row = by_key_tiles(grid)
    shape = shaped(keys.shape, keys)
    dk, dv = pallas_call(
        functools.partial(_vjp_keys, grid),
        grid_spec=GridSpec(
            grid=(grid.batch * grid.kv_heads, grid.across, grid.shared * grid.down),
            in_specs=[by_query, by_query, by_key, by_key, by_row, by_row, by_row],
            out_specs=[by_key, by_key],
            scratch_shapes=[VMEM((grid.columns, grid.size), FLOAT32)] * 2,
        ),
        out_shape=[shape, shape],
        compiler_params=IN_ORDER,
        interpret=interpret,
        name="flash_vjp_keys",
    )(queries, incoming, keys, values, *rows)
    return tokens(turned(dq), q), tokens(dk, k), tokens(dv, v)


def _weights_and_ds(grid: Grid, i: X, j: X, q: Ref, dy: Ref, k: Ref, v: Ref, rows: tuple[Ref, ...]) -> tuple[X, X]:
    """P and dS = scale P (dP - D) of one tile, turned. Source: Dao et al. 2022, appendix B.2."""
    row_max, row_sum, dots = (x[0] for x in rows)
    scores = mul(_turned_product(k[0], q[0]), grid.scale)
    weights = div(lax.exp(sub(scores, row_max)), row_sum)
    weights = choose(grid.seen(i, j), weights, lax.full_like(weights, 0.0))
    return weights, mul(mul(weights, sub(_turned_product(v[0], dy[0]), dots)), grid.scale)


def _vjp_queries(
    grid: Grid, q: Ref, dy: Ref, k: Ref, v: Ref, k_turned: Ref, row_max: Ref, row_sum: Ref, dots: Ref, dq: Ref,
    sum_q: Ref,
) -> None:  # fmt: skip
    i, j = program_id(1), program_id(2)

    @when(j == 0)
    def start() -> None:
        sum_q[...] = lax.full(sum_q.shape, 0.0, FLOAT32)

    @when(grid.meet(i, j))
    def tile() -> None:
        _, ds = _weights_and_ds(grid, i, j, q, dy, k, v, (row_max, row_sum, dots))
        sum_q[...] = add(sum_q[...], dot(wide(k_turned[0]), ds, STRAIGHT))

    @when(j == grid.across - 1)
    def end() -> None:
        dq[0] = like(sum_q[...], dq)


def _vjp_keys(
    grid: Grid, q: Ref, dy: Ref, k: Ref, v: Ref, row_max: Ref, row_sum: Ref, dots: Ref, dk: Ref, dv: Ref,
    sum_k: Ref, sum_v: Ref,
) -> None:  # fmt: skip
    j, turn = program_id(1), program_id(2)
    i = lax.rem(turn, lax.full((), grid.down, "int32"))

    @when(turn == 0)
    def start() -> None:
        sum_k[...] = lax.full(sum_k.shape, 0.0, FLOAT32)
        sum_v[...] = lax.full(sum_v.shape, 0.0, FLOAT32)

    @when(grid.meet(i, j))
    def tile() -> None:
        weights, ds = _weights_and_ds(grid, i, j, q, dy, k, v, (row_max, row_sum, dots))
        sum_k[...] = add(sum_k[...], dot(ds, wide(q[0]), STRAIGHT))
        sum_v[...] = add(sum_v[...], dot(weights, wide(dy[0]), STRAIGHT))

    @when(turn == grid.shared * grid.down - 1)
    def end() -> None:
        dk[0], dv[0] = like(sum_k[...], dk), like(sum_v[...], dv)


def _turned_product(a: X, b: X) -> X:
    """(m, d) and (n, d) to (m, n). Products of bfloat16 are exact as they are, and Mosaic takes no more precision."""
    if a.dtype != BFLOAT16:
        return dot(a, b, TURNED)
    return lax.dot_general(a, b, TURNED, precision=lax.Precision.DEFAULT, preferred_element_type=FLOAT32)


def _sum_of_rows(x: X) -> X:
    return lax.expand_dims(lax.reduce_sum(x, (0,)), (0,))
