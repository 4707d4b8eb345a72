"""Reading model configurations from plain values, strictly."""

from __future__ import annotations

import difflib
import math
from collections.abc import Mapping
from dataclasses import fields
from typing import Any, TypeVar

from turret.spi import ConfigError

C = TypeVar("C")


def from_values(kind: type[C], values: Mapping[str, Any]) -> C:
    """A frozen configuration from a mapping.

    Raises: ConfigError for an unknown key (with a suggestion) or a missing one.
    """
    known = {f.name for f in fields(kind)}  # type: ignore[arg-type]  # callers pass dataclasses
    for key in values:
        if key not in known:
            near = difflib.get_close_matches(key, known, n=1)
            hint = f"did you mean '{near[0]}'?" if near else f"known: {', '.join(sorted(known))}"
            raise ConfigError(f"{kind.__name__} has no key '{key}'; {hint}")
    try:
        return kind(**values)
    except TypeError as error:
        raise ConfigError(f"{kind.__name__}: {error}; wanted the keys {', '.join(sorted(known))}") from error


def require_flags(what: str, **flags: object) -> None:
    """Raises: ConfigError for a flag that is no bool: "false" would count as true."""
    for name, flag in flags.items():
        if not isinstance(flag, bool):
            raise ConfigError(f"{what}: {name} is {flag!r}; wanted true or false")


def require_positive(what: str, **numbers: object) -> None:
    """Raises: ConfigError for what is no finite number above 0."""
    for name, number in numbers.items():
        if isinstance(number, bool) or not isinstance(number, (int, float)) or not 0 < number < math.inf:
            raise ConfigError(f"{what}: {name} is {number!r}; wanted a positive number")


def require_sizes(what: str, **sizes: object) -> None:
    """Raises: ConfigError for a size that is no int of at least 1."""
    for name, size in sizes.items():
        if not isinstance(size, int) or isinstance(size, bool) or size < 1:
            raise ConfigError(f"{what}: {name} is {size!r}; wanted a whole number of at least 1")
