"""The optimizer's update: everything is computed first, then chosen or refused whole."""

from __future__ import annotations

import math
from collections.abc import Sequence

from turret.spi import Adapted

from .arrays import FLOAT32, X, add, choose, div, equal, greater, less, less_equal, like, mul, smaller, sub, wide
from .library import lax
from .place import Place
from .programs import program

Group = tuple[X, ...]

# A compiler may divide by multiplying with the reciprocal, which has to be a normal number.
SMALLEST_UNIT, LARGEST_UNIT = 2.0**-100, 2.0**100
# Between these the sum of squares is right as it is: what flushed to zero or came near overflow does not count.
SMALLEST_SUM, LARGEST_SUM = 2.0**-60, 2.0**120


class TpuAdam:
    """One program for all tensors. Donated buffers are taken where each is given once.

    The norm is the root of the sum of squares; where that leaves the range of float32 it is computed again as unit *
    sqrt(sum((g / unit)^2)) with unit the largest magnitude. It is inf, and the step refused, only where it has no
    float32.
    """

    def __init__(self, place: Place) -> None:
        self._place = place

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
        groups = tuple(params), tuple(grads), tuple(first), tuple(second)
        arrays = {id(x) for group in groups for x in group} | {id(x) for x in (lr, correction1, correction2)}
        given = donate and len(arrays) == 4 * len(params) + 3
        made = self._place.run(
            _update_into if given else _update, *groups, lr, correction1, correction2,
            betas=(float(betas[0]), float(betas[1])), eps=float(eps), decay=tuple(map(float, decay)),
            max_norm=float(max_norm),
        )  # fmt: skip
        return Adapted(*made)


def _adapted(
    params: Group, grads: Group, first: Group, second: Group, lr: X, correction1: X, correction2: X,
    *, betas: tuple[float, float], eps: float, decay: tuple[float, ...], max_norm: float,
) -> tuple[Group, Group, Group, X, X]:  # fmt: skip
    wide_grads = tuple(map(wide, grads))
    norm = _norm(wide_grads)
    clip = choose(less(max_norm, norm), div(max_norm, greater(norm, max_norm)), lax.full_like(norm, 1))
    made = []
    for p, g, m, v, weight_decay in zip(params, wide_grads, first, second, decay, strict=True):
        scaled, old = mul(g, clip), wide(p)
        new_m = add(mul(m, betas[0]), mul(scaled, 1 - betas[0]))
        new_v = add(mul(v, betas[1]), mul(mul(scaled, scaled), 1 - betas[1]))
        step = div(div(new_m, correction1), add(lax.sqrt(div(new_v, correction2)), eps))
        if weight_decay:
            step = add(step, mul(old, weight_decay))
        made.append((like(sub(old, mul(step, lr)), p), new_m, new_v))
    # a first moment that is not finite shows in the parameter, a second one need not: g / inf is 0
    bad = _total([_bad(x) for new_p, _, new_v in made for x in (new_p, new_v)])
    finite = lax.bitwise_and(lax.is_finite(norm), equal(bad, 0))
    chosen = tuple(
        tuple(choose(finite, new[i], old) for new, old in zip(made, olds, strict=True))
        for i, olds in enumerate((params, first, second))
    )
    return chosen[0], chosen[1], chosen[2], norm, finite


_update = program("betas", "eps", "decay", "max_norm")(_adapted)
_update_into = program("betas", "eps", "decay", "max_norm", donate=("params", "first", "second"))(_adapted)


def _norm(grads: Group) -> X:
    """The Euclidean norm of all tensors together, float32 of rank 0."""
    total = _total([_sum(mul(g, g)) for g in grads])
    plain = lax.bitwise_and(less_equal(SMALLEST_SUM, total), less_equal(total, LARGEST_SUM))
    norm: X = lax.cond(plain, lambda: lax.sqrt(total), lambda: _scaled_norm(grads))
    return norm


def _scaled_norm(grads: Group) -> X:
    tops = [lax.reduce_max(lax.abs(g), tuple(range(g.ndim))) for g in grads if math.prod(g.shape)]
    top = tops[0] if tops else lax.full((), 0, FLOAT32)
    for each in tops[1:]:
        top = lax.max(top, each)
    unit = smaller(greater(top, SMALLEST_UNIT), LARGEST_UNIT)
    shares = [div(g, unit) for g in grads]
    length = mul(lax.sqrt(_total([_sum(mul(x, x)) for x in shares])), unit)
    return lax.select(lax.is_finite(top), length, top)


def _total(sums: list[X]) -> X:
    total = sums[0]
    for each in sums[1:]:
        total = add(total, each)
    return total


def _sum(x: X) -> X:
    return lax.reduce_sum(x, tuple(range(x.ndim)))


def _bad(x: X) -> X:
    """How many elements are not finite: int32 of rank 0, which cannot overlook NaN as a maximum may."""
    return _sum(lax.convert_element_type(lax.bitwise_not(lax.is_finite(x)), "int32"))
