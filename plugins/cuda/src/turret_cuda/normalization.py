"""The normalization slot."""

from __future__ import annotations

import math

from turret.spi import Normed

from .arrays import statistics, suffix
from .library import X
from .place import THREADS, Place
from .rows import over_rows

TILE = 32  # columns that a block adds up: a warp reads as many neighbours
FEWEST_ROWS, MOST_CHUNKS = 32, 256  # how rows are cut for the sums over them, whatever the device


class CudaNormalization:
    """The variance is the mean square of the centred values: no difference of two large numbers.

    With n the normed values and g = dy * weight: dx = rstd (g - mean(g n) n) for RMSNorm, less rstd mean(g) for
    LayerNorm; dweight = sum(dy n), dbias = sum(dy), added up per chunk of rows and then over the chunks, in one order.
    """

    def __init__(self, place: Place) -> None:
        self._place = place

    def layer_norm(self, x: X, weight: X, bias: X, /, *, eps: float) -> Normed[X]:
        place = self._place
        out, mean, rstd = place.empty(x.shape, x.dtype), self._statistic(x), self._statistic(x)
        operands = place.dense(x), place.dense(weight), place.dense(bias)
        over_rows(place, "normalization", "layer_norm", x, *operands, float(eps), out, mean, rstd)
        return Normed(out, mean, rstd)

    def layer_norm_vjp(self, dy: X, x: X, weight: X, mean: X, rstd: X, /) -> tuple[X, X, X]:
        place = self._place
        dy, x, weight, mean, rstd = (place.dense(each) for each in (dy, x, weight, mean, rstd))
        dx, dweight, dbias = (place.empty(like.shape, like.dtype) for like in (x, weight, weight))
        over_rows(place, "normalization", "layer_norm_vjp", x, dy, x, weight, mean, rstd, dx)
        self._sum_rows(dy, x, mean, rstd, dweight, dbias)
        return dx, dweight, dbias

    def rms_norm(self, x: X, weight: X, /, *, eps: float) -> tuple[X, X]:
        place = self._place
        out, rstd = place.empty(x.shape, x.dtype), self._statistic(x)
        operands = place.dense(x), place.dense(weight), None
        over_rows(place, "normalization", "rms_norm", x, *operands, float(eps), out, None, rstd)
        return out, rstd

    def rms_norm_vjp(self, dy: X, x: X, weight: X, rstd: X, /) -> tuple[X, X]:
        place = self._place
        dy, x, weight, rstd = (place.dense(each) for each in (dy, x, weight, rstd))
        dx, dweight = place.empty(x.shape, x.dtype), place.empty(weight.shape, weight.dtype)
        over_rows(place, "normalization", "rms_norm_vjp", x, dy, x, weight, None, rstd, dx)
        self._sum_rows(dy, x, None, rstd, dweight, None)
        return dx, dweight

    def _statistic(self, x: X) -> X:
        return self._place.empty((*x.shape[:-1], 1), statistics(x))

    def _sum_rows(self, dy: X, x: X, mean: X | None, rstd: X, dweight: X, dbias: X | None) -> None:
        """Writes dweight, and dbias where it is an array. All arrays are dense."""
        place, size, rows = self._place, x.shape[-1], math.prod(x.shape[:-1])
        if not size:
            return
        tiles, name = -(-size // TILE), suffix(x)
        chunks = min(-(-rows // FEWEST_ROWS), MOST_CHUNKS)
        weight_parts = place.empty((chunks, size), statistics(x))
        bias_parts = None if dbias is None else place.empty((chunks, size), statistics(x))
        if chunks:
            operands = dy, x, mean, rstd, weight_parts, bias_parts, rows, size
            place.launch("normalization", f"sum_chunks_{name}", (tiles, chunks), THREADS, *operands)
        place.launch("normalization", f"sum_parts_{name}", tiles, THREADS, weight_parts, dweight, chunks, size)
        if dbias is not None:
            place.launch("normalization", f"sum_parts_{name}", tiles, THREADS, bias_parts, dbias, chunks, size)
