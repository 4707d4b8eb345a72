"""Counter-based random numbers: a value is a pure function of (seed, stream, position), never of what was drawn before.

The raw words of NumPy's Philox are used, whose sequence NumPy promises to keep, and not the methods of its
`Generator`, whose results may change between versions.
Source: Salmon et al. 2011, Parallel random numbers: as easy as 1, 2, 3 (Philox4x64-10).
"""

from __future__ import annotations

from enum import IntEnum

import numpy as np
import numpy.typing as npt

from turret.spi.errors import ConfigError

WORD = 1 << 64


class Stream(IntEnum):
    """What the numbers are for: equal seeds and positions give independent numbers on different streams."""

    TRAINING = 1
    VALIDATION = 2
    SAMPLING = 3
    EXAMPLE_ORDER = 4
    EXAMPLE_SPLIT = 5


def checked_seed(seed: int) -> int:
    """The seed itself. Raises: ConfigError unless it is an integer in [0, 2**64)."""
    if isinstance(seed, bool) or not isinstance(seed, (int, np.integer)) or not 0 <= seed < WORD:
        raise ConfigError(f"got seed {seed!r}, want an integer from 0 to 2**64 - 1")
    return int(seed)


def words(seed: int, stream: Stream, position: tuple[int, int], count: int) -> npt.NDArray[np.uint64]:
    """`count` words of 64 random bits; each element of seed and position is in [0, 2**64)."""
    key = np.array([seed, stream], np.uint64)
    counter = np.array([0, *position, 0], np.uint64)
    return np.random.Philox(key=key, counter=counter).random_raw(count)


def integers(seed: int, stream: Stream, position: tuple[int, int], count: int, limit: int) -> npt.NDArray[np.int64]:
    """`count` integers, uniform over [0, limit) up to a bias below limit / 2**64."""
    return (words(seed, stream, position, count) % np.uint64(limit)).astype(np.int64)


def permutation(seed: int, stream: Stream, position: tuple[int, int], count: int) -> npt.NDArray[np.int64]:
    """The integers in [0, count) in an order drawn uniformly, up to ties of 64-bit words."""
    return np.argsort(words(seed, stream, position, count), kind="stable").astype(np.int64)


def fraction(seed: int, stream: Stream, position: tuple[int, int]) -> float:
    """One float64, uniform over the multiples of 2**-53 in [0, 1)."""
    return float(int(words(seed, stream, position, 1)[0]) >> 11) * 2.0**-53
