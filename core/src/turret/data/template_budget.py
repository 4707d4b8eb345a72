"""What rendering one chat template may cost: every operation pays for its work before it does it."""

from __future__ import annotations

from typing import Any

from jinja2.exceptions import SecurityError
from jinja2.runtime import Macro, Undefined

_DEEPEST = 32
_WIDEST_INTEGER = 512  # bits
_CHARACTERS = 16  # characters of text that one unit pays for
_EMPTY: dict[str, str] = {}
_VIEWS = (type(_EMPTY.keys()), type(_EMPTY.values()), type(_EMPTY.items()))
_CONTAINERS = (list, tuple, dict, range, *_VIEWS)


class Budget:
    """Units of work that are left, about a microsecond each; spending more than is left ends the rendering."""

    def __init__(self, units: int) -> None:
        self._left = units
        self._calls = 0

    def spend(self, units: int) -> None:
        """Pay for `units` of work.

        Raises: SecurityError when they are not there.
        """
        self._left -= max(units, 0)
        if self._left < 0:
            raise SecurityError("the template does far more work than its messages need")

    def spend_text(self, characters: int) -> None:
        """Pay for making or reading a text of so many characters."""
        self.spend(1 + characters // _CHARACTERS)

    def weigh(self, value: Any) -> None:
        """Pay for a walk through all that `value` holds, as printing, hashing or comparing it takes.

        Raises: SecurityError for what is no data and for values too deep or too large.
        """
        pending = [(value, 0)]
        while pending:
            each, depth = pending.pop()
            if isinstance(each, str):
                self.spend_text(len(each))
            elif isinstance(each, int):
                self.spend(1)
                if each.bit_length() > _WIDEST_INTEGER:
                    raise SecurityError("the template computes a number that is too large")
            elif isinstance(each, _CONTAINERS):
                self.spend(1 + len(each))
                if depth == _DEEPEST:
                    raise SecurityError("the template nests values too deep")
                inside = list(each)
                if isinstance(each, dict):
                    inside += each.values()
                pending += [(item, depth + 1) for item in inside]
            elif each is None or isinstance(each, float | Undefined):
                self.spend(1)
            else:
                raise SecurityError(f"the template uses a {type(each).__name__} as if it were data")

    def items(self, value: Any) -> Any:
        """What a loop over `value` walks through, paid for.

        Raises: SecurityError for what cannot be looped over.
        """
        if isinstance(value, str | dict | _VIEWS[0] | _VIEWS[1] | _VIEWS[2]):
            self.spend(1 + len(value))
            return list(value)
        if isinstance(value, list | tuple | range):
            self.spend(1 + len(value))
            return value
        if isinstance(value, Undefined):
            return list(value)
        raise SecurityError(f"the template loops over a {type(value).__name__}")

    def text(self, value: Any) -> str:
        """`value` as it is printed, paid for."""
        if isinstance(value, str):
            self.spend_text(len(value))
            return value
        self.weigh(value)
        return str(value)

    def enter(self, called: Any) -> None:
        """Begin a call. `leave` ends it.

        Raises: SecurityError for calls of macros inside each other that never end.
        """
        self.spend(4)
        self._calls += isinstance(called, Macro)
        if self._calls > _DEEPEST:
            raise SecurityError("the template's macros call each other too deep")

    def leave(self, called: Any) -> None:
        """End a call that `enter` began."""
        self._calls -= isinstance(called, Macro)
