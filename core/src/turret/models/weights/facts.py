"""Typed reading of what model files say about themselves: nothing in them is believed before it is checked."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from turret.spi import CheckpointError, Unsupported

MISSING: Any = object()
"""The default of a fact that has to be there."""
MOST = 2**40
"""No size of a model comes near it."""


class Facts:
    """Facts by key, of one file or a part of it; `where` names that in errors, which are CheckpointErrors.

    A key with null counts as absent, as the programs that write these files have it.
    """

    def __init__(self, values: Mapping[str, Any], where: str) -> None:
        self.values, self.where = values, where

    def has(self, key: str) -> bool:
        """Whether there is a value."""
        return self.values.get(key) is not None

    def size(self, key: str, default: Any = MISSING) -> int:
        """A whole number of at least 1."""
        value = self._get(key, default)
        if type(value) is not int or not 1 <= value < MOST:
            raise self._wrong(key, value, "a whole number of at least 1")
        return value

    def number(self, key: str, default: Any = MISSING) -> float:
        """A finite number above 0."""
        value = self._get(key, default)
        if type(value) not in (int, float) or not 0 < value < 2.0**63:
            raise self._wrong(key, value, "a positive number")
        return float(value)

    def flag(self, key: str, default: Any = MISSING) -> bool:
        """True or false."""
        value = self._get(key, default)
        if type(value) is not bool:
            raise self._wrong(key, value, "true or false")
        return value

    def word(self, key: str, default: Any = MISSING) -> str:
        """Text."""
        value = self._get(key, default)
        if type(value) is not str:
            raise self._wrong(key, value, "a text")
        return value

    def ids(self, key: str) -> tuple[int, ...]:
        """One token id or a list of them; none where the key is absent."""
        value = self._get(key, ())
        listed = [value] if type(value) is int else value
        if not isinstance(listed, (list, tuple)) or not all(type(each) is int and abs(each) < MOST for each in listed):
            raise self._wrong(key, value, "a token id or a list of them")
        return tuple(listed)

    def part(self, key: str) -> Facts:
        """The facts of an object inside."""
        value = self._get(key, {})
        if not isinstance(value, dict):
            raise self._wrong(key, value, "an object")
        return Facts(value, f"{self.where}: {key}")

    def refuse_unless(self, neutral: Mapping[str, tuple[Any, ...]]) -> None:
        """Raises: Unsupported for a key whose value is not one of those that leave the function as it is."""
        for key, allowed in neutral.items():
            if self.has(key) and not any(_same(self.values[key], each) for each in allowed):
                raise self.unsupported(key, f"wanted {' or '.join(repr(each) for each in (*allowed, None))}")

    def unsupported(self, key: str, wanted: str) -> Unsupported:
        """The error of a value that is understood and not supported."""
        return Unsupported(f"{self.where}: {key} is {self.values.get(key)!r:.80}, which turret does not do; {wanted}")

    def _get(self, key: str, default: Any) -> Any:
        value = self.values.get(key)
        if value is not None:
            return value
        if default is MISSING:
            raise CheckpointError(f"{self.where}: there is no {key!r}; wanted a value: take the whole file")
        return default

    def _wrong(self, key: str, value: Any, wanted: str) -> CheckpointError:
        return CheckpointError(f"{self.where}: {key} is {value!r:.80}; wanted {wanted}")


def _same(value: Any, other: Any) -> bool:
    """Equal, where true is not 1; 1 and 1.0 are the same number."""
    if isinstance(value, bool) or isinstance(other, bool):
        return value is other
    return bool(value == other) and not (isinstance(value, float) and math.isnan(value))
