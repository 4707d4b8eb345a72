"""docs/reference/api.md: what `turret.__all__` lists, from its docstrings."""

from __future__ import annotations

import inspect
import types
from collections.abc import Iterator

import turret

from .source import block, class_signature, docstring, methods, signature, summary

HEAD = """\
# The Python interface

What `turret.__all__` lists. Everything else is private and may change in any version. The packages below list what they
export; `turret.spi` has its own page, [spi.md](spi.md).
"""


def page() -> str:
    """The whole page: functions and classes first, then packages."""
    things = {name: getattr(turret, name) for name in turret.__all__}
    packages = {name: thing for name, thing in things.items() if isinstance(thing, types.ModuleType)}
    parts = [HEAD.strip()]
    parts += [entry(f"turret.{name}", thing) for name, thing in things.items() if name not in packages]
    parts += [package(f"turret.{name}", module) for name, module in packages.items()]
    return "\n\n".join(parts) + "\n"


def entry(title: str, thing: object) -> str:
    """A function or class: how to call it, its contract, the class's public methods in one line each."""
    parts = [f"## `{title}`"]
    if inspect.isfunction(thing):
        parts += [block(signature(thing)), docstring(thing)]
    elif isinstance(thing, type):
        made = class_signature(thing)
        parts += [block(made) if made else "", docstring(thing)]
        parts.append("\n".join(f"- `{name}`: {text.splitlines()[0]}" for name, _, text in methods(thing) if text))
    return "\n\n".join(part for part in parts if part)


def package(title: str, module: types.ModuleType) -> str:
    """A package: what it owns, and one line for each name it exports."""
    lines = [f"- `{name}`: {summary(thing)}" for name, thing in exported(module) if summary(thing)]
    parts = [f"## `{title}`", docstring(module)]
    if module.__name__ != "turret.spi":
        parts.append("\n".join(lines))
    return "\n\n".join(part for part in parts if part)


def exported(module: types.ModuleType) -> Iterator[tuple[str, object]]:
    """The public functions and classes of a package: those in `__all__`, or all it holds that turret defines."""
    for name in sorted(getattr(module, "__all__", vars(module))):
        thing = getattr(module, name)
        if not name.startswith("_") and getattr(thing, "__module__", "").startswith("turret") and callable(thing):
            yield name, thing
