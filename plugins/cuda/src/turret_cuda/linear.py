"""The linear slot."""

from __future__ import annotations

import cupy

from .arrays import statistics, suffix
from .library import X
from .place import THREADS, Place
from .products import product, rows, steps

# A block adds up the rows of its part for as many columns as a warp has threads; the parts are added up at the end.
COLUMNS, ROWS_OF_A_PART, MOST_PARTS = 32, 256, 64


class CudaLinear:
    """All leading axes fold into rows; the product is added to rows that hold the bias, so halves are rounded once."""

    def __init__(self, place: Place) -> None:
        self._place = place

    def linear(self, x: X, weight: X, bias: X | None, /) -> X:
        place, folded = self._place, rows(self._place, x)
        y = place.empty((folded.shape[0], weight.shape[0]), x.dtype)
        if bias is not None:
            place.copy_into(y, cupy.broadcast_to(bias, y.shape))
        product(place, y, folded, weight, transpose_b=True, add=bias is not None)
        return y.reshape((*x.shape[:-1], weight.shape[0]))

    def linear_vjp_input(self, dy: X, weight: X, /) -> X:
        place, folded = self._place, rows(self._place, dy)
        dx = place.empty((folded.shape[0], weight.shape[1]), dy.dtype)
        product(place, dx, folded, weight)
        return dx.reshape((*dy.shape[:-1], weight.shape[1]))

    def linear_vjp_weight(self, dy: X, x: X, /) -> tuple[X, X]:
        place, folded = self._place, rows(self._place, dy)
        dweight = place.empty((dy.shape[-1], x.shape[-1]), dy.dtype)
        product(place, dweight, folded, rows(place, x), transpose_a=True)
        return dweight, self._over_rows(folded)

    def _over_rows(self, x: X) -> X:
        """(N, C) to (C,): sums in an order that depends on the sizes alone; zeros where N is 0."""
        place, (count, width) = self._place, x.shape
        out = place.empty((width,), x.dtype)
        if not width:
            return out
        parts = min(-(-count // ROWS_OF_A_PART), MOST_PARTS)
        sums = place.empty((parts, width), statistics(x))
        if parts:
            blocks = -(-width // COLUMNS), parts
            place.launch("linear", f"part_sums_{suffix(x)}", blocks, THREADS, x, *steps(x), sums, count, width)
        place.spread("linear", f"over_parts_{suffix(x)}", width, sums, out, parts, width)
        return out
