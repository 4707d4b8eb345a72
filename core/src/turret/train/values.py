"""Single values of a configuration: whether they are of their type and in range, and how an error says them."""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from turret.spi import ConfigError

LONGEST = 80
"""Characters of a value in an error."""


def shown(value: object) -> str:
    """`value` as Python writes it, cut to `LONGEST` characters; also one that Python refuses to write."""
    try:
        return f"{value!r:.{LONGEST}}"
    except (ValueError, RecursionError):  # an int of more than 4300 digits, lists in lists
        return f"a {type(value).__name__} too long to write"


def typed(name: str, kind: str, value: Any, *, source: str) -> Any:
    """`value` where it is of the annotated `kind`, a whole number as a float where a number is wanted.

    Raises: ConfigError naming source, name and what was wanted.
    """
    if value is None and "None" in kind:
        return None
    if kind.startswith("tuple"):
        if isinstance(value, (list, tuple)) and all(isinstance(each, str) for each in value):
            return tuple(value)
        wanted = "a path or a list of paths"
    elif kind == "bool":
        if isinstance(value, bool):
            return value
        wanted = "true or false"
    elif "float" in kind:
        if (number := _number(value)) is not None:
            return number
        wanted = "a number that a float holds"
    elif "int" in kind:
        if isinstance(value, int) and not isinstance(value, bool):
            return value
        wanted = "a whole number"
    else:
        if isinstance(value, str):
            return value
        wanted = "a text"
    raise ConfigError(f"{source}: {name} is {shown(value)}; wanted {wanted}")


def known_values(
    kinds: Mapping[str, str],
    values: Mapping[str, Any],
    *,
    source: str,
    written: Callable[[str, Any], Any],
    short: Mapping[str, str] = MappingProxyType({}),
) -> dict[str, Any]:
    """`values` of the annotated `kinds`; dashes in keys count as underscores.

    written: what a value of a key stands for, where files write it another way. short: other names of keys.
    Raises: ConfigError naming source, key and what was wanted.
    """
    checked = {}
    for raw, value in values.items():
        key = raw.replace("-", "_")
        key = short.get(key, key)
        if key not in kinds:
            near = difflib.get_close_matches(key, kinds, n=1)
            hint = f"did you mean '{near[0]}'?" if near else f"known: {', '.join(sorted(kinds))}"
            raise ConfigError(f"{source} has no key {shown(raw)}; {hint}")
        if key in checked:
            raise ConfigError(f"{source} gives '{key}' twice, in two spellings")
        checked[key] = typed(key, kinds[key], written(key, value), source=source)
    return checked


def require_kept(config: object, given: Mapping[str, Any], changeable: frozenset[str]) -> None:
    """Raises: ConfigError for a value that would make a resumed run another one."""
    for key, value in given.items():
        if key not in changeable and getattr(config, key) != value:
            free = ", ".join(sorted(k.replace("_", "-") for k in changeable))
            raise ConfigError(
                f"a resumed run keeps {key.replace('_', '-')} {shown(getattr(config, key))}, got {shown(value)}; "
                f"leave it out or start a new run; a resumed run may change {free}"
            )


def require_count(name: str, value: int, least: int, *, bits: int = 63) -> None:
    """Raises: ConfigError unless least <= value < 2**bits."""
    option = name.replace("_", "-")
    if value < least:
        raise ConfigError(f"{option} {shown(value)}; wanted at least {least}")
    if value.bit_length() > bits:
        raise ConfigError(f"{option} {shown(value)}; wanted less than 2**{bits}")


def require_word(name: str, value: str, known: tuple[str, ...]) -> None:
    """Raises: ConfigError for a word that is not among those known."""
    if value not in known:
        raise ConfigError(f"{name} {shown(value)}; wanted one of {', '.join(known)}")


def _number(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return None if math.isnan(number) else number
