"""The causal attention slot."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from .arrays import by_value, statistics, suffix
from .cublas import ALIGNED, Operand
from .library import X
from .place import MOST_BLOCKS, Place
from .products import clear, steps
from .storage import cast

ADDRESS = np.dtype(np.int64)
MOST_STACKS = 9
STACK = np.dtype([(name, np.int64) for name in ("first", "batch", "head", "group")])
STACKS = np.dtype([("of", STACK, MOST_STACKS)])


class CudaCausalAttention:
    """One call of cuBLAS for all heads, each found by its address: neither heads nor shared keys are copied.

    Scores that nobody sees are not read, nor are keys and values past the last query.
    """

    def __init__(self, place: Place) -> None:
        self._place = place

    def attend(self, q: X, k: X, v: X, /, *, scale: float, offset: int) -> tuple[X, X]:
        place, (b, t, h, _), s = self._place, q.shape, k.shape[1]
        kind, group, seen = statistics(q), h // k.shape[2], min(s, offset + t)
        probabilities, out = place.empty((b, h, t, s), kind), place.empty(q.shape, kind)
        do = _Heads(
            place,
            q,
            q=_stack(place, cast(place, q, kind)),
            k=_stack(place, cast(place, k[:, :seen], kind), group),
            v=_stack(place, cast(place, v[:, :seen], kind), group),
            p=_stack(place, _by_token(probabilities[..., :seen])),
            out=_stack(place, out),
        )
        do.product("q", "k", into="p", transpose_b=True)
        self._over_rows("softmax", probabilities, t, offset, float(scale))
        do.product("p", "v", into="out")
        return cast(place, out, q.dtype), probabilities

    def attend_vjp(self, dy: X, q: X, k: X, v: X, probabilities: X, /, *, scale: float) -> tuple[X, X, X]:
        place, (b, t, h, d), (s, shared) = self._place, q.shape, k.shape[1:3]
        kind, group = statistics(q), h // shared
        p, ds = place.dense(cast(place, probabilities, kind)), place.empty((b, h, t, s), kind)
        dq, dk, dv = (place.empty((b, length, h, d), kind) for length in (t, s, s))
        do = _Heads(
            place,
            q,
            dy=_stack(place, cast(place, dy, kind)),
            q=_stack(place, cast(place, q, kind)),
            k=_stack(place, cast(place, k, kind), group),
            v=_stack(place, cast(place, v, kind), group),
            p=_stack(place, _by_token(p)),
            ds=_stack(place, _by_token(ds)),
            dq=_stack(place, dq),
            dk=_stack(place, dk),
            dv=_stack(place, dv),
        )
        do.product("dy", "v", into="ds", transpose_b=True)
        self._over_rows("softmax_vjp", ds, p, float(scale))
        do.product("ds", "k", into="dq")
        do.product("ds", "q", into="dk", transpose_a=True)
        do.product("p", "dy", into="dv", transpose_a=True)
        return cast(place, dq, q.dtype), self._over_groups(dk, k), self._over_groups(dv, v)

    def _over_rows(self, kernel: str, x: X, *operands: X | float) -> None:
        """Rewrites the rows of x: one warp for each where they are short, up to eight where they are long."""
        count, length = x.size // x.shape[-1], x.shape[-1]
        threads = min(256, max(32, length // 8 // 32 * 32))
        if count:
            name, blocks = f"{kernel}_{suffix(x)}", min(count, MOST_BLOCKS)
            self._place.launch("causal_attention", name, blocks, threads, x, count, length, *operands)

    def _over_groups(self, x: X, model: X) -> X:
        """(B, S, H, d) to the (B, S, K, d) of `model`: the sum over the query heads of a group, in its dtype."""
        shared, size = model.shape[2:]
        if x.shape[2] == shared:
            return cast(self._place, x, model.dtype)
        out = self._place.empty(model.shape, model.dtype)
        kernel, group = f"over_groups_{suffix(model)}", x.shape[2] // shared
        self._place.spread("causal_attention", kernel, out.size, x, out, size, group, out.size)
        return out


class _Stack(NamedTuple):
    """The matrices (rows, columns) of all heads; every `group` query heads share one. Steps count elements."""

    array: X
    rows: int
    columns: int
    row: int
    batch: int
    head: int
    group: int


def _stack(place: Place, x: X, group: int = 1) -> _Stack:
    """The heads of x: (B, L, H, d), as it lies where each matrix has its rows in C order, else of a dense copy."""
    _, length, _, size = x.shape
    batch, row, head, across = steps(x)
    if (size > 1 and across != 1) or (length > 1 and row < size):
        return _stack(place, place.copied(x), group)
    return _Stack(x, length, size, size if length == 1 else row, batch, head, group)


def _by_token(x: X) -> X:
    """(B, H, T, S) seen as (B, T, H, S)."""
    return x.transpose((0, 2, 1, 3))


class _Heads:
    """Products of the matrices of each head, by name. Their addresses are written on the device, by one kernel."""

    def __init__(self, place: Place, model: X, **stacks: _Stack) -> None:
        batch, _, heads, _ = model.shape
        self._place, self._stacks, self._count = place, stacks, batch * heads
        self._kind, self._widened = statistics(model), model.dtype != statistics(model)
        width, described = self._kind.itemsize, np.zeros((), STACKS)
        for i, each in enumerate(stacks.values()):
            described["of"][i] = each.array.data.ptr, each.batch * width, each.head * width, each.group
        self._table = place.empty((len(stacks), self._count), ADDRESS)
        place.spread(
            *("causal_attention", "addresses", self._table.size),
            *(by_value(described), self._table, heads, self._count, self._table.size),
        )

    def product(self, a: str, b: str, *, into: str, transpose_a: bool = False, transpose_b: bool = False) -> None:
        """Writes op(a) op(b) of every head to `into`; `op` exchanges rows and columns where its flag is set."""
        left, right, result = (self._stacks[name] for name in (a, b, into))
        sizes = self._count, result.rows, result.columns, left.rows if transpose_a else left.columns
        if not result.array.size:
            return
        if not sizes[-1]:
            clear(self._place, result.array)
            return
        operands = self._operand(a, transpose_a), self._operand(b, transpose_b), self._operand(into)
        # halves are computed in float32, also where float32 itself is not
        tf32 = not self._widened and all(_aligned(each) for each in (left, right, result))
        self._place.multiply(
            lambda blas: blas.pointers(self._kind, sizes, *operands, tf32=tf32),
            *(left.array, right.array, result.array, self._table),
        )

    def _operand(self, name: str, transposed: bool = False) -> Operand:
        number, stack = list(self._stacks).index(name), self._stacks[name]
        address = self._table.data.ptr + number * self._count * ADDRESS.itemsize
        return Operand(address, stack.row, transposed=transposed)


def _aligned(stack: _Stack) -> bool:
    width = stack.array.dtype.itemsize
    where = stack.array.data.ptr, *(step * width for step in (stack.row, stack.batch, stack.head))
    return not any(each % ALIGNED for each in where)
