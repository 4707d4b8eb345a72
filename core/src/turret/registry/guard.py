"""The one place where foreign code is called: whatever a plugin raises becomes a value."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from turret.spi import TurretError

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Failure:
    """What foreign code raised."""

    error: BaseException

    def __str__(self) -> str:
        text = words(self.error)
        if isinstance(self.error, TurretError):
            return text
        return f"{type(self.error).__name__}: {text}" if text else type(self.error).__name__


def words(error: BaseException) -> str:
    """The exception's own text, which is foreign code as well."""
    try:
        return str(error).strip()
    except (Exception, SystemExit) as second:  # noqa: BLE001 - an exception of a plugin is foreign code too
        return f"(its text raises {type(second).__name__})"


def attempt(call: Callable[[], T]) -> T | Failure:
    """The call's result, or what it raised. Only KeyboardInterrupt and its like pass; SystemExit does not."""
    try:
        return call()
    except (Exception, SystemExit) as error:  # noqa: BLE001 - plugins raise anything, and one must not stop the rest
        return Failure(error)
