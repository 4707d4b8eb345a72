"""Initial weights: drawn on the host from a counter-based generator, so that a seed means the same on every backend."""

from __future__ import annotations

import numpy as np

from turret.data.counter import checked_seed
from turret.derived.random import host_normal
from turret.spi import Host, Shape

INIT_STD = 0.02


class Init:
    """Draw number n of a seed is a function of (seed, n) alone. Source: Salmon et al. 2011 (Philox)."""

    def __init__(self, seed: int) -> None:
        self._seed = checked_seed(seed)
        self._draws = 0

    def normal(self, shape: Shape, *, std: float = INIT_STD) -> Host:
        """float32 from N(0, std^2)."""
        drawn = host_normal(shape, key=self._seed, counter=self._draws)
        self._draws += 1
        return (drawn * std).astype(np.float32)

    def zeros(self, shape: Shape) -> Host:
        return np.zeros(shape, np.float32)

    def ones(self, shape: Shape) -> Host:
        return np.ones(shape, np.float32)
