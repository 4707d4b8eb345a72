"""Budgets of whole models: how far the float64 truth moves when every weight moves by what rounding may do to it."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from turret.spi import Host

from .tolerances import WHOLE_MODEL, shake

SHAKES = 3
Weights = Mapping[str, Host]
Truth = Callable[[Weights], Mapping[str, Host]]


def spread(truth: Truth, weights: Weights, rng: np.random.Generator, *, shakes: int = SHAKES) -> dict[str, float]:
    """The budget of each result of `truth`, for all its elements alike.

    The largest distance over a few random shakes, times WHOLE_MODEL. Where results vanish by symmetry alone, as the
    gradient of a key's bias does, shaken weights do not move them and rounding does: hence a floor, the same shake of
    the largest result.
    """
    by = shake(max(value.shape[-1] for value in weights.values()))
    exact = truth(weights)
    found = dict.fromkeys(exact, 0.0)
    for _ in range(shakes):
        moved = {name: value * (1 + by * rng.uniform(-1, 1, value.shape)) for name, value in weights.items()}
        for name, value in truth(moved).items():
            found[name] = max(found[name], float(np.max(np.abs(value - exact[name]), initial=0.0)))
    floor = by * max(float(np.max(np.abs(value), initial=0.0)) for value in exact.values())
    return {name: WHOLE_MODEL * distance + floor for name, distance in found.items()}
