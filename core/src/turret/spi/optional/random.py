"""The slot of random numbers."""

from __future__ import annotations

from typing import Protocol

from ..arrays import A_co, Shape


class Random(Protocol[A_co]):
    """Stateless: the values are a function of (key, counter, shape) alone, the same at every call on one backend.

    key and counter are Python ints, 0 <= value < 2^64. Distinct (key, counter) pairs give independent streams.
    """

    def bits(self, shape: Shape, /, *, key: int, counter: int) -> A_co:
        """int32, every bit pattern equally likely."""
        ...

    def uniform(self, shape: Shape, /, *, key: int, counter: int) -> A_co:
        """float32 in [0, 1)."""
        ...

    def normal(self, shape: Shape, /, *, key: int, counter: int) -> A_co:
        """float32, mean 0, variance 1, finite."""
        ...
