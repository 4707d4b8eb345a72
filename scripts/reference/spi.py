"""docs/reference/spi.md: every slot, method, value and error of the backend interface, from its docstrings."""

from __future__ import annotations

import dataclasses
import sys
import typing
from collections.abc import Iterator

import turret.spi as spi
import turret.spi.array_api as array_api
import turret.spi.arrays as arrays
import turret.spi.hooks as hooks
import turret.spi.required as required
import turret.spi.table as table

from .source import block, class_signature, docstring, fields, methods, signature

HEAD = f"""\
# The backend interface

Version {spi.SPI_VERSION[0]}.{spi.SPI_VERSION[1]}. Everything here is imported from `turret.spi`; a plugin may import
that and `turret.derived`, nothing else of turret. `A` stands for the array type of the backend's library. Dimension
letters are listed in [shapes.md](shapes.md). `Host` is a NumPy array, `Shape` a tuple of ints, `DType` the name of a
dtype as a string ("float32"), `GeluForm` "erf" or "tanh".

## Behaviour beyond the slots

What the suite asks of every backend besides right results:

- Importing the plugin module imports no array library and changes nothing: no file, thread, environment variable,
  signal handler, warning filter, random state or NumPy error state. Nor does opening, or computing.
- Two openings are two independent objects; closing twice is allowed; opening after closing works.
- Slots may be called from several threads at once. A child that is forked, or spawned, after use computes rightly or
  fails with an error; it does not hang.
- After a call that raised, whatever it raised, the next calls are right.
- Memory does not grow over steps, neither with equal shapes nor with ever new ones.
- Results keep their values when the same operation runs again.
"""


def page() -> str:
    """The whole page."""
    slots = {field.name: protocol(field.name) for field in dataclasses.fields(table.Capabilities)[1:]}
    musts = {field.name: protocol(field.name) for field in dataclasses.fields(table.Required)}
    shown = [spi.BackendInfo, spi.Backend, *musts.values(), *slots.values()]
    sections = [
        HEAD,
        "## The hook\n\nA plugin module implements it and is named by an entry point in the group `turret`.\n",
        block(signature(hooks.turret_backends)),
        docstring(hooks.turret_backends),
        "## What a plugin describes and opens\n",
        entry(spi.BackendInfo, spi.BackendInfo.__name__),
        entry(spi.Backend, spi.Backend.__name__),
        "## The table of slots\n",
        *(entry(cls, cls.__name__) for cls in (table.Capabilities, table.Required, table.Toolset)),
        "## Array rules\n",
        docstring(arrays),
        f"Every device computes in {words(spi.REQUIRED_DTYPES)}; it may declare more of "
        f"{words(set(spi.DTYPES) - set(spi.REQUIRED_DTYPES))}.",
        "## Required slots\n",
        docstring(required),
        *(slot(name, cls) for name, cls in musts.items()),
        "## Optional slots\n",
        "`turret.derived` composes each of them from the required ones for a backend that has nothing better.",
        *grouped(slots),
        "## Values\n",
        *(entry(cls, cls.__name__) for cls in values(shown)),
        "## From an array namespace\n",
        docstring(array_api),
        *(f"### `{name}`\n\n{body}" for name, body in namespace_entries()),
        "## Errors\n",
        docstring(spi.errors),
        "\n".join(errors(spi.TurretError)),
    ]
    return "\n\n".join(section.strip() for section in sections if section.strip()) + "\n"


def protocol(name: str) -> type:
    """The protocol class of the slot `name`."""
    found = typing.get_type_hints(table.Toolset)[name]
    cls = typing.get_origin(found) or found
    assert isinstance(cls, type)
    return cls


def grouped(slots: dict[str, type]) -> Iterator[str]:
    """Each slot, and before the first one of a module what that module says about all of its slots."""
    told = ""
    for name, cls in slots.items():
        if cls.__module__ != told:
            told = cls.__module__
            yield docstring(sys.modules[told])
        yield slot(name, cls)


def slot(name: str, cls: type) -> str:
    """One slot: its promise, then each method."""
    parts = [f"### `{name}`: {cls.__name__}", docstring(cls)]
    for method, written, text in methods(cls):
        parts += [f"#### `{name}.{method}`", block(written), text]
    return "\n\n".join(part for part in parts if part)


def entry(cls: type, title: str) -> str:
    """One class: its promise, its fields, its methods."""
    parts = [f"### `{title}`", docstring(cls)]
    listed = [line for line, _ in fields(cls)]
    if listed:
        parts.append("```text\n" + "\n".join(listed) + "\n```")
    for method, written, text in methods(cls):
        parts += [f"#### `{title}.{method}`", block(written), text]
    return "\n\n".join(part for part in parts if part)


def values(shown: list[type]) -> Iterator[type]:
    """The remaining classes that `turret.spi` exports: what methods take and return."""
    tables = {table.Capabilities, table.Required, table.Toolset}
    for name in sorted(vars(spi)):
        thing = vars(spi)[name]
        if isinstance(thing, type) and not issubclass(thing, Exception) and thing not in tables and thing not in shown:
            yield thing


def namespace_entries() -> Iterator[tuple[str, str]]:
    """What a plugin calls in `turret.spi.array_api`: the function, and the hooks it takes."""
    yield "required_from", f"{block(signature(array_api.required_from))}\n\n{docstring(array_api.required_from)}"
    yield "Hooks", f"{block(class_signature(array_api.Hooks))}\n\n{docstring(array_api.Hooks)}"


def errors(root: type[Exception], depth: int = 0) -> Iterator[str]:
    """The tree below `root`, one bullet each."""
    yield f"{'  ' * depth}- `{root.__name__}`: {docstring(root)}"
    for child in root.__subclasses__():
        if child.__module__ == spi.errors.__name__:
            yield from errors(child, depth + 1)


def words(names: typing.Iterable[str]) -> str:
    """`a`, `b` and `c`, in the order of `DTYPES`."""
    quoted = [f"`{name}`" for name in spi.DTYPES if name in set(names)]
    return ", ".join(quoted[:-1]) + " and " + quoted[-1]
