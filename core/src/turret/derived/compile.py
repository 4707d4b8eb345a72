"""Running a function where there is no compiler."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic

from turret.spi import A, Required


class DerivedCompile(Generic[A]):
    """Plain execution: the function itself. Nothing is donated."""

    def __init__(self, required: Required[A]) -> None:
        """Needs none of the slots; takes them to be made like the others."""

    def compile(
        self, fn: Callable[..., tuple[A, ...]], /, *, donate: tuple[int, ...] = ()
    ) -> Callable[..., tuple[A, ...]]:
        return fn
