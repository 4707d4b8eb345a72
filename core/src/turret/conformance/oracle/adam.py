"""Truth of the optimizer's update: clipping by the norm of all gradients, Adam, decoupled decay, all or nothing."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from .arrays import Array, quiet

Arrays = tuple[Array, ...]


@quiet
def update(
    params: Sequence[Array],
    grads: Sequence[Array],
    first: Sequence[Array],
    second: Sequence[Array],
    /,
    *,
    lr: Array,
    correction1: Array,
    correction2: Array,
    betas: tuple[float, float],
    eps: float,
    decay: Sequence[float],
    max_norm: float,
    donate: bool = False,
    largest: float = math.inf,
) -> tuple[Arrays, Arrays, Arrays, Array, bool]:
    """New params, first and second moments, the norm before clipping, and whether all of it is finite.

    Where it is not, the three tuples hold the very arrays given. Beyond `largest`, the greatest number of the dtype
    under test, a value counts as not finite. `donate` is a permission this truth has no use for.
    Source: Kingma and Ba 2015, algorithm 1; Loshchilov and Hutter 2019, algorithm 2.
    """
    norm = np.sqrt(sum((np.square(g).sum() for g in grads), 0.0))
    clip = 1.0 if max_norm == math.inf else max_norm / np.maximum(norm, max_norm)
    made: list[Arrays] = []
    for p, g, m, v, rate in zip(params, grads, first, second, decay, strict=True):
        g = g * clip
        m = betas[0] * m + (1 - betas[0]) * g
        v = betas[1] * v + (1 - betas[1]) * np.square(g)
        step = (m / correction1) / (np.sqrt(v / correction2) + eps) + rate * p
        made.append((p - lr * step, m, v))
    results = [norm, *(x for three in made for x in three)]
    finite = all(bool(np.all(np.isfinite(x) & (np.abs(x) <= largest))) for x in results)
    if not finite:
        return tuple(params), tuple(first), tuple(second), norm, False
    new_params, new_first, new_second = (tuple(kind) for kind in zip(*made, strict=True))
    return new_params, new_first, new_second, norm, True
