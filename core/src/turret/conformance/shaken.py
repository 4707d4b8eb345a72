"""Budgets of whole models: how far the float64 truth moves when every weight moves by what rounding may do to it."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from turret.spi import Host

from .tolerances import WHOLE_MODEL, shake

SHAKES = 2
Weights = Mapping[str, Host]
Truth = Callable[[Weights], Mapping[str, Host]]


def spread(
    truth: Truth, weights: Weights, rng: np.random.Generator, *, shakes: int = SHAKES
) -> tuple[Mapping[str, Host], dict[str, float]]:
    """The truth at `weights`, and the budget of each of its results, for all elements of one alike.

    A budget is WHOLE_MODEL times the largest distance over a few random shakes. Where results vanish by symmetry alone,
    as the gradient of a key's bias does, shaken weights do not move them and rounding does: hence a floor, the same
    shake of the largest result.
    """
    by = shake(max(value.shape[-1] for value in weights.values()))
    exact = truth(weights)
    found = dict.fromkeys(exact, 0.0)
    for _ in range(shakes):
        moved = {name: value * (1 + by * rng.uniform(-1, 1, value.shape)) for name, value in weights.items()}
        for name, value in truth(moved).items():
            found[name] = max(found[name], float(np.max(np.abs(value - exact[name]), initial=0.0)))
    floor = by * max(float(np.max(np.abs(value), initial=0.0)) for value in exact.values())
    return exact, {name: WHOLE_MODEL * distance + floor for name, distance in found.items()}
