"""The reduction slot."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from turret.spi import Shape, ShapeError

from .arrays import FLOAT32, INT32, SUFFIXES, suffix
from .library import X
from .place import MOST_BLOCKS, THREADS, Place

Axis = int | tuple[int, ...]

# Up to here a thread of its own is the fastest reader of a row.
SHORT_ROW = 16
# So many blocks and threads keep a large GPU busy: with fewer results an axis is cut, but not into tiny chunks.
BUSY_BLOCKS, BUSY_THREADS = 1024, 131_072
ROW_CHUNKS, COLUMN_CHUNKS = (4096, 2**18), (32, 1024)


class CudaReduction:
    """Halves are summed in float32 and rounded once; long sums are cut at places that depend on the shape alone."""

    def __init__(self, place: Place) -> None:
        self._place = place

    def sum(self, x: X, /, *, axis: Axis, keepdims: bool = False) -> X:
        return self._fold("sum", x, axis, keepdims, 1.0)

    def mean(self, x: X, /, *, axis: Axis, keepdims: bool = False) -> X:
        return self._fold("sum", x, axis, keepdims, float(math.prod(x.shape[a] for a in _axes(axis, x.ndim))))

    def max(self, x: X, /, *, axis: Axis, keepdims: bool = False) -> X:
        _refuse_empty("max", x, axis)
        return self._fold("max", x, axis, keepdims, 1.0)

    def argmax(self, x: X, /, *, axis: int, keepdims: bool = False) -> X:
        _refuse_empty("argmax", x, axis)
        place = self._place
        x, sizes, shape = _in_order(place, x, axis, keepdims)
        out, found = place.empty(shape, INT32), None
        for step in _passes(*sizes) if out.size else ():
            to = out if step.chunks == 1 else place.empty((step.units,), INT32)
            name = f"argmax_{step.form}_{suffix(x)}"
            place.launch("reduction", name, step.blocks, step.threads, x, found, to, *step.sizes, sizes[1])
            found = to
        return out

    def _fold(self, kind: str, x: X, axis: Axis, keepdims: bool, divisor: float) -> X:
        place = self._place
        x, sizes, shape = _in_order(place, x, axis, keepdims)
        out = place.empty(shape, x.dtype)
        between = FLOAT32 if kind == "sum" and x.dtype.itemsize == 2 else x.dtype
        for step in _passes(*sizes) if out.size else ():
            last = step.chunks == 1
            to = out if last else place.empty((step.units,), between)
            name = f"{kind}_{step.form}_{suffix(x)}_{SUFFIXES[to.dtype]}"
            options = *step.sizes, divisor if last else 1.0
            place.launch("reduction", name, step.blocks, step.threads, x, to, *options)
            x = to
        return out


@dataclass(frozen=True, slots=True, kw_only=True)
class Pass:
    """One kernel over (outer, reduced, inner), which leaves (outer, chunks, inner): `units` results."""

    form: str
    units: int
    inner: int
    reduced: int
    chunks: int
    length: int

    @property
    def blocks(self) -> int:
        return min(self.units if self.form == "rows" else -(-self.units // THREADS), MOST_BLOCKS)

    @property
    def threads(self) -> int:
        if self.form == "columns":
            return THREADS
        return next((threads for threads in (32, 64, 128) if self.length <= 8 * threads), THREADS)

    @property
    def sizes(self) -> tuple[int, ...]:
        inner = (self.inner,) if self.form == "columns" else ()
        return self.units, *inner, self.reduced, self.chunks, self.length


def _passes(outer: int, reduced: int, inner: int) -> Iterator[Pass]:
    """Kernels one after the other, until a single chunk is left."""
    chunks = 0
    while chunks != 1:
        if inner == 1 and reduced > SHORT_ROW:
            form, wanted, (shortest, longest) = "rows", BUSY_BLOCKS, ROW_CHUNKS
        else:
            form, wanted, (shortest, longest) = "columns", BUSY_THREADS, COLUMN_CHUNKS
        cuts = -(-wanted // (outer * inner))
        length = min(max(-(-reduced // cuts), shortest), longest)
        chunks = max(-(-reduced // length), 1)
        units = outer * chunks * inner
        yield Pass(form=form, units=units, inner=inner, reduced=reduced, chunks=chunks, length=length)
        reduced = chunks


def _in_order(place: Place, x: X, axis: Axis, keepdims: bool) -> tuple[X, tuple[int, int, int], Shape]:
    """x with its elements as (outer, reduced, inner) in C order, those sizes, and the shape of the result."""
    axes = _axes(axis, x.ndim)
    kept = tuple(a for a in range(x.ndim) if a not in axes)
    shape = tuple(1 if a in axes else size for a, size in enumerate(x.shape) if keepdims or a not in axes)
    orders = [order for order in (tuple(range(x.ndim)), kept + axes, axes + kept) if _adjacent(x, order, axes)]
    order = next((each for each in orders if x.transpose(each).flags.c_contiguous), orders[0])
    x = place.dense(x.transpose(order))
    at = [i for i, a in enumerate(order) if a in axes]
    start, stop = (at[0], at[-1] + 1) if at else (x.ndim, x.ndim)
    return x, (math.prod(x.shape[:start]), math.prod(x.shape[start:stop]), math.prod(x.shape[stop:])), shape


def _adjacent(x: X, order: tuple[int, ...], axes: tuple[int, ...]) -> bool:
    """Whether nothing that is kept lies between `axes` in this order."""
    at = [i for i, a in enumerate(order) if a in axes]
    return not at or all(order[i] in axes for i in range(at[0], at[-1]))


def _axes(axis: Axis, rank: int) -> tuple[int, ...]:
    return tuple(sorted(a % rank for a in ((axis,) if isinstance(axis, int) else axis)))


def _refuse_empty(what: str, x: X, axis: Axis) -> None:
    if any(x.shape[a] == 0 for a in _axes(axis, x.ndim)):
        raise ShapeError(f"{what} along an axis without elements: shape {x.shape}, axis {axis}; wanted one at least")
