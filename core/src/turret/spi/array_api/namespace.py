"""The functions of the standard that the slots are made of, made to keep two promises the standard does not."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import wraps
from types import SimpleNamespace
from typing import Any

from ..errors import Unsupported

CREATION = ("arange", "asarray", "astype", "full")
ARITHMETIC = (
    "add",
    "divide",
    "exp",
    "log",
    "matmul",
    "maximum",
    "minimum",
    "multiply",
    "negative",
    "sqrt",
    "subtract",
    "tanh",
)
COMPARISON = ("equal", "isfinite", "less", "less_equal", "logical_and", "where")
FOLDING = ("argmax", "max", "sum")
SHAPING = ("broadcast_to", "concat", "matrix_transpose", "permute_dims", "reshape", "take", "take_along_axis")
FUNCTIONS = (*CREATION, *ARITHMETIC, *COMPARISON, *FOLDING, *SHAPING)


class Guard:
    """Wraps functions so that they are silent and give arrays at rank 0, where a library needs it."""

    def __init__(self, namespace: Any, quiet: Callable[[], AbstractContextManager[object]] | None) -> None:
        self._quiet = quiet
        self._asarray = namespace.asarray
        nought = namespace.zeros(())
        self._gives_scalars = not isinstance(namespace.add(nought, nought), type(nought))  # NumPy does

    def __call__(self, function: Callable[..., Any]) -> Callable[..., Any]:
        if self._quiet is None and not self._gives_scalars:
            return function
        enter, box = self._quiet or nullcontext, self._box

        @wraps(function)
        def guarded(*arguments: Any, **options: Any) -> Any:
            with enter():
                return box(function(*arguments, **options))

        return guarded

    def optional(self, function: Callable[..., Any] | None) -> Callable[..., Any] | None:
        return None if function is None else self(function)

    def _box(self, result: Any) -> Any:
        return self._asarray(result) if self._gives_scalars and not result.shape else result


def standard(namespace: Any, guard: Guard) -> SimpleNamespace:
    """The guarded functions of `namespace`; Unsupported names those it lacks."""
    found: dict[str, Callable[..., Any]] = {}
    missing: list[str] = []
    for name in FUNCTIONS:
        try:
            found[name] = guard(getattr(namespace, name))
        except AttributeError:
            missing.append(name)
    if missing:
        raise Unsupported(
            f"namespace {namespace.__name__!r} lacks {', '.join(missing)} of the Python array API standard 2024.12; "
            "use a newer release of the library, or wrap it, for example with array-api-compat"
        )
    return SimpleNamespace(**found)
