"""The slot of random numbers."""

from __future__ import annotations

from typing import Protocol

from ..arrays import A_co, Shape


class Random(Protocol[A_co]):
    """Stateless: the values are a function of (key, counter, shape) alone, the same at every call on one backend.

    key and counter are Python ints, 0 <= value < 2^64. Distinct (key, counter) pairs give independent streams. `bits`
    and `uniform` are the same on every backend, so that a seed means one mask: block j = 0, 1, ... of a stream is what
    Philox4x64-10 makes of the counter words (j + 1, 0, counter, 0), lowest first, and the key (key, 0); each of its
    four words of 64 bits gives two of 32, the low half first. Source: Salmon et al. 2011, section 3.3.
    """

    def bits(self, shape: Shape, /, *, key: int, counter: int) -> A_co:
        """int32: the words of 32 bits, row-major."""
        ...

    def uniform(self, shape: Shape, /, *, key: int, counter: int) -> A_co:
        """float32 in [0, 1): the upper 24 bits of a word, over 2^24."""
        ...

    def normal(self, shape: Shape, /, *, key: int, counter: int) -> A_co:
        """float32, mean 0, variance 1, finite."""
        ...
