"""The optimizer's update: everything is computed first, then chosen or refused whole."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Generic

from turret.spi import A, Adapted, Required

from .ops import Ops

# A compiler may divide by multiplying with the reciprocal, which has to be a normal number.
SMALLEST_UNIT, LARGEST_UNIT = 2.0**-100, 2.0**100


class DerivedAdam(Generic[A]):
    """Out of place: donation is a permission that this update does not need.

    The norm is unit * sqrt(sum((g / unit)^2)) with unit the largest magnitude of all gradients, so that neither 1e30
    nor 1e-30 leaves the range of float32; it is inf, and the step refused, only where the norm has no float32.
    """

    def __init__(self, required: Required[A]) -> None:
        self._ops = Ops(required)

    def update(
        self,
        params: Sequence[A],
        grads: Sequence[A],
        first: Sequence[A],
        second: Sequence[A],
        /,
        *,
        lr: A,
        correction1: A,
        correction2: A,
        betas: tuple[float, float],
        eps: float,
        decay: Sequence[float],
        max_norm: float,
        donate: bool,
    ) -> Adapted[A]:
        o = self._ops
        wide_grads = [o.cast(g, "float32") for g in grads]
        norm = self._norm(wide_grads)
        too_long = o.less(max_norm, norm)
        clip = o.where(too_long, o.divide(max_norm, o.where(too_long, norm, 1.0)), 1.0)
        finite = o.isfinite(norm)
        made: list[tuple[A, A, A]] = []
        for p, g, m, v, weight_decay in zip(params, wide_grads, first, second, decay, strict=True):
            new_m, new_v = self._moments(o.multiply(g, clip), m, v, betas)
            root = o.add(o.sqrt(o.divide(new_v, correction2)), eps)
            step = o.like(o.divide(o.divide(new_m, correction1), root), o.wide(p))
            if weight_decay:
                step = o.add(step, o.multiply(o.wide(p), weight_decay))
            new_p = o.like(o.subtract(o.wide(p), o.multiply(step, o.like(lr, step))), p)
            # a first moment that is not finite shows in the parameter, a second one need not: g / inf is 0
            for x in (new_p, new_v):
                finite = o.logical_and(finite, o.isfinite(self._greatest(o.wide(x))))
            made.append((new_p, new_m, new_v))
        chosen = [
            tuple(o.where(finite, new[i], old) for new, old in zip(made, olds, strict=True))
            for i, olds in enumerate((params, first, second))
        ]
        return Adapted(chosen[0], chosen[1], chosen[2], norm, finite)

    def _moments(self, g: A, m: A, v: A, betas: tuple[float, float]) -> tuple[A, A]:
        o, (beta1, beta2) = self._ops, betas
        new_m = o.add(o.multiply(m, beta1), o.multiply(g, 1 - beta1))
        return new_m, o.add(o.multiply(v, beta2), o.multiply(o.multiply(g, g), 1 - beta2))

    def _norm(self, grads: Sequence[A]) -> A:
        o = self._ops
        top = o.max(o.concatenate([o.reshape(self._greatest(g), (1,)) for g in grads], axis=0), axis=0)
        unit = o.minimum(o.maximum(top, SMALLEST_UNIT), LARGEST_UNIT)
        squares = [o.divide(o.flat(g), unit) for g in grads]
        sums = [o.reshape(o.sum(o.multiply(x, x), axis=0), (1,)) for x in squares]
        length = o.multiply(o.sqrt(o.sum(o.concatenate(sums, axis=0), axis=0)), unit)
        return o.where(o.isfinite(top), length, top)

    def _greatest(self, x: A) -> A:
        """The largest magnitude, rank 0; NaN where there is one; 0 for an empty tensor."""
        o = self._ops
        return o.max(o.magnitude(o.flat(x)), axis=0) if math.prod(x.shape) else o.full((), 0.0, dtype=o.dtype_of(x))
