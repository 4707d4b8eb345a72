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

        fn runs once for every new combination of shapes and dtypes, with arrays that may have no values yet; what it
        raises then reaches the caller, and nothing was donated. Outputs are scheduled when a call returns, are the
        caller's own, and may be an input's buffer only where that input was donated.
        Raises, when the program is called: CaptureError where fn reads a value on the host; OutOfMemory where the
        device has no room, after which donated inputs are lost.
        """
        ...
