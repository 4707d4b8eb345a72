"""Learning-rate schedules: functions from a step, counted from 1, to a rate, in host float64."""

from __future__ import annotations

import math
from collections.abc import Callable

from turret.spi import ConfigError

Schedule = Callable[[int], float]


def constant(lr: float, *, warmup: int = 0) -> Schedule:
    """`lr` at every step, after a linear rise over the first `warmup` steps."""
    _check(lr, warmup)
    return lambda step: lr * min(1.0, step / warmup) if warmup else lr


def warmup_cosine(lr: float, *, min_lr: float, warmup: int, steps: int) -> Schedule:
    """A linear rise to `lr` over `warmup` steps, then half a cosine down to `min_lr` at step `steps`.

    Source: Loshchilov and Hutter 2017, eq. 5, one cycle.
    """
    _check(lr, warmup)
    if not 0 <= min_lr <= lr:
        raise ConfigError(f"min_lr {min_lr} with lr {lr}; wanted 0 <= min_lr <= lr")
    if steps <= warmup:
        raise ConfigError(f"{steps} steps with a warmup of {warmup}; the cosine needs more steps than the warmup takes")

    def rate(step: int) -> float:
        if step < warmup:
            return lr * step / warmup
        share = min(1.0, (step - warmup) / (steps - warmup))
        return min_lr + 0.5 * (lr - min_lr) * (1.0 + math.cos(math.pi * share))

    return rate


def _check(lr: float, warmup: int) -> None:
    if not (lr > 0 and math.isfinite(lr)):
        raise ConfigError(f"lr {lr}; wanted a positive number")
    if warmup < 0:
        raise ConfigError(f"warmup {warmup}; wanted a number of steps >= 0")
