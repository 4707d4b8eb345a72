"""Initial weights: drawn on the host from a counter-based generator, so that a seed means the same on every backend."""

from __future__ import annotations

import math

import numpy as np

from turret.data.counter import checked_seed
from turret.derived.random import host_normal
from turret.spi import Host, Shape
from turret.tensor.pending import Pending

INIT_STD = 0.02


class Init:
    """Draw number n of a seed is a function of (seed, n) alone. Source: Salmon et al. 2011 (Philox)."""

    def __init__(self, seed: int) -> None:
        self._seed = checked_seed(seed)
        self._draws = 0

    def normal(self, shape: Shape, *, std: float = INIT_STD) -> Host | Pending:
        """float32 from N(0, std^2)."""
        drawn = host_normal(shape, key=self._seed, counter=self._draws)
        self._draws += 1
        return (drawn * std).astype(np.float32)

    def uniform(self, shape: Shape, *, bound: float) -> Host | Pending:
        """float32, uniform over -bound to bound."""
        raw = np.random.Philox(key=self._seed, counter=self._draws << 128).random_raw(math.prod(shape))
        self._draws += 1
        drawn = (np.asarray(raw, np.uint64) >> np.uint64(11)) * 2.0**-53
        return ((2 * drawn - 1) * bound).astype(np.float32).reshape(shape)

    def zeros(self, shape: Shape) -> Host | Pending:
        return np.zeros(shape, np.float32)

    def ones(self, shape: Shape) -> Host | Pending:
        return np.ones(shape, np.float32)


class Blank(Init):
    """Draws nothing: parameters wait for the values that are loaded into them."""

    def __init__(self) -> None:
        super().__init__(0)

    def normal(self, shape: Shape, *, std: float = INIT_STD) -> Pending:
        return Pending(shape)

    def uniform(self, shape: Shape, *, bound: float) -> Pending:
        return Pending(shape)

    def zeros(self, shape: Shape) -> Pending:
        return Pending(shape)

    def ones(self, shape: Shape) -> Pending:
        return Pending(shape)
