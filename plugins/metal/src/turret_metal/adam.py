"""The optimizer's update: everything is computed first, then chosen or refused whole."""

from __future__ import annotations

import math
from collections.abc import Sequence

import mlx.core as mx

from turret.spi import Adapted

from .arrays import like, wide
from .kernels import update as kernel
from .stream import Stream, X

# A compiler may divide by multiplying with the reciprocal, which has to be a normal number.
SMALLEST_UNIT, LARGEST_UNIT = 2.0**-100, 2.0**100


class MetalAdam:
    """Out of place: MLX reuses by itself the buffers of old arrays that nobody holds.

    The norm is unit * sqrt(sum((g / unit)^2)) with unit the largest magnitude of all gradients, so that neither 1e30
    nor 1e-30 leaves the range of float32; it is inf, and the step refused, only where the norm has no float32.
    """

    def __init__(self, do: Stream) -> None:
        self._do = do

    def update(
        self,
        params: Sequence[X],
        grads: Sequence[X],
        first: Sequence[X],
        second: Sequence[X],
        /,
        *,
        lr: X,
        correction1: X,
        correction2: X,
        betas: tuple[float, float],
        eps: float,
        decay: Sequence[float],
        max_norm: float,
        donate: bool,
    ) -> Adapted[X]:
        do = self._do
        norm = self._norm([wide(do, g) for g in grads])
        if math.isinf(max_norm):
            clip = do(mx.ones, ())
        else:
            clip = do(mx.divide, max_norm, do(mx.max, self._numbers(norm, max_norm)))
        rates = (clip, lr, correction1, correction2)
        rows = list(zip(params, grads, first, second, decay, strict=True))
        if do.on_gpu:
            made = kernel.update(do, rows, rates, betas, eps, norm)
        else:
            made = self._update(rows, rates, betas, eps, norm)
        do.start(*made.params, *made.first, *made.second, norm, made.finite)
        return made

    def _update(
        self,
        rows: Sequence[tuple[X, X, X, X, float]],
        rates: tuple[X, X, X, X],
        betas: tuple[float, float],
        eps: float,
        norm: X,
    ) -> Adapted[X]:
        do, made = self._do, [self._moved(*row, rates, betas, eps) for row in rows]
        # a first moment that is not finite shows in the parameter, a second one need not: g / inf is 0
        worst = [_greatest(do, wide(do, x)) for p, _, v in made for x in (p, v) if x.size]
        finite = do(mx.less, do(mx.max, do(mx.stack, [norm, *worst])), math.inf)  # NaN is less than nothing
        kept = [[do(mx.where, finite, new[i], row[j]) for new, row in zip(made, rows, strict=True)] for i, j in PLACES]
        return Adapted(tuple(kept[0]), tuple(kept[1]), tuple(kept[2]), norm, finite)

    def _moved(
        self,
        p: X,
        g: X,
        m: X,
        v: X,
        decay: float,
        rates: tuple[X, X, X, X],
        betas: tuple[float, float],
        eps: float,
    ) -> tuple[X, X, X]:
        """A parameter and its moments after the step."""
        do, (clip, lr, correction1, correction2), (beta1, beta2) = self._do, rates, betas
        g, x = wide(do, g), wide(do, p)
        # not one product of g and clip for both: MLX would write it out and read it twice
        new_m = do(mx.add, do(mx.multiply, m, beta1), do(mx.multiply, do(mx.multiply, g, 1 - beta1), clip))
        square = do(mx.square, do(mx.multiply, g, clip))
        new_v = do(mx.add, do(mx.multiply, v, beta2), do(mx.multiply, square, 1 - beta2))
        root = do(mx.add, do(mx.sqrt, do(mx.divide, new_v, correction2)), eps)
        step = do(mx.multiply, do(mx.divide, do(mx.divide, new_m, correction1), root), lr)
        # the rate of decay as an array: one kernel for every tensor, decaying or not
        step = do(mx.add, step, do(mx.multiply, x, do(mx.multiply, lr, decay)))
        return like(do, do(mx.subtract, x, step), p), new_m, new_v

    def _norm(self, grads: Sequence[X]) -> X:
        """The Euclidean norm of all gradients together, float32 of rank 0."""
        do, filled = self._do, [g for g in grads if g.size]
        if not filled:
            return do(mx.zeros, ())
        top = do(mx.max, self._numbers(*(_greatest(do, g) for g in filled), SMALLEST_UNIT))
        unit = do(mx.minimum, top, LARGEST_UNIT)
        squares = [do(mx.square, do(mx.divide, g, unit)) for g in filled]
        total = do(mx.sum, do(mx.stack, [do(mx.sum, x) for x in squares]))
        return do(mx.prod, self._numbers(do(mx.sqrt, total), unit))

    def _numbers(self, *numbers: X | float) -> X:
        """Arrays of rank 0 side by side: a reduction needs no kernel, where a chain of two operations is compiled."""
        return self._do(mx.stack, [x if isinstance(x, mx.array) else self._do(mx.full, (), x) for x in numbers])


# Where parameter, first and second moment stand in a row of results and in one of operands.
PLACES = ((0, 0), (1, 2), (2, 3))


def _greatest(do: Stream, x: X) -> X:
    """The largest magnitude, rank 0; NaN where there is one."""
    return do(mx.max, do(mx.abs, x))
