"""The slot that turns a function over arrays into one program of the device."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from ..arrays import A


class Compile(Protocol[A]):
    """Derived: plain execution."""

    def compile(
        self, fn: Callable[..., tuple[A, ...]], /, *, donate: tuple[int, ...] = ()
    ) -> Callable[..., tuple[A, ...]]:
        """fn: pure, positional arrays to a tuple of arrays. donate: argument numbers whose buffers may be reused.

        Outputs are scheduled when the call returns.
        """
        ...
