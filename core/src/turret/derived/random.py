"""Random numbers made on the host by a counter-based generator."""

from __future__ import annotations

import math
from typing import Generic

import numpy as np

from turret.spi import A, Host, Required, Shape


class DerivedRandom(Generic[A]):
    """The raw words of Philox4x64 for (key, counter), moved to the device: the same values wherever this runs.

    uniform: the upper 24 bits of a word over 2^24. normal: Box-Muller in float64, so that no value exceeds 6.7.
    Sources: Salmon et al. 2011, section 3.3; Box and Muller 1958, eq. 1.
    """

    def __init__(self, required: Required[A]) -> None:
        self._storage = required.storage

    def bits(self, shape: Shape, /, *, key: int, counter: int) -> A:
        words = _words(math.prod(shape), key, counter)
        return self._storage.from_host(words.view(np.int32).reshape(shape))

    def uniform(self, shape: Shape, /, *, key: int, counter: int) -> A:
        words = _words(math.prod(shape), key, counter)
        words >>= np.uint32(8)  # what is left has 24 bits: a float32 holds it, and its product with a power of two
        return self._storage.from_host((words.astype(np.float32) * np.float32(2.0**-24)).reshape(shape))

    def normal(self, shape: Shape, /, *, key: int, counter: int) -> A:
        return self._storage.from_host(host_normal(shape, key=key, counter=counter).astype(np.float32))


def host_normal(shape: Shape, *, key: int, counter: int) -> Host:
    """float64 of mean 0 and variance 1, a function of (key, counter, shape) alone in every version of NumPy."""
    count = math.prod(shape)
    pairs = _words(count + count % 2, key, counter).reshape(-1, 2)
    radius = np.sqrt(-2.0 * np.log((pairs[:, 0] + 1.0) * 2.0**-32))
    angle = pairs[:, 1] * (2.0**-32 * 2.0 * math.pi)
    drawn = np.stack([radius * np.cos(angle), radius * np.sin(angle)], axis=1).reshape(-1)
    return np.asarray(drawn[:count].reshape(shape))


def _words(count: int, key: int, counter: int) -> Host:
    """`count` words of 32 bits. The raw stream never changes between NumPy versions, its distributions may."""
    # the generator counts in the low half of its 256-bit counter: streams of two counters cannot meet
    raw = np.random.Philox(key=key, counter=counter << 128).random_raw(count + 1 >> 1)
    return np.asarray(raw, "<u8").view("<u4")[:count].astype(np.uint32, copy=False)
