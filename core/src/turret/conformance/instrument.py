"""Proof of execution: every slot wrapped so that calls, host transfers and derived compositions are counted."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol

import turret.derived as derived
from turret.derived import fill
from turret.registry import OpenBackend
from turret.spi import OPTIONAL_SLOTS, REQUIRED_SLOTS, Capabilities, Required

TRANSFERS = {"from_host", "to_host"}


class Observer(Protocol):
    """Told of every outermost call, before and after it."""

    def before(self, slot: str, method: str, arguments: tuple[Any, ...], options: dict[str, Any]) -> None: ...
    def after(self, result: Any) -> None: ...


class Counts:
    """What happened since the last `reset`.

    calls: per slot, the calls that reached the plugin. transfers: arrays through the host while a slot other than
    storage was at work. derived: per slot, the calls that a composition answered.
    """

    def __init__(self) -> None:
        self.calls: Counter[str] = Counter()
        self.transfers: Counter[str] = Counter()
        self.derived: Counter[str] = Counter()
        self.observer: Observer | None = None
        self.inside: list[str] = []

    def reset(self) -> None:
        self.calls.clear()
        self.transfers.clear()
        self.derived.clear()


class CountedSlot:
    """A slot of the plugin that counts the calls it gets."""

    def __init__(self, slot: Any, name: str, counts: Counts, *, outermost: bool) -> None:
        self._slot, self._name, self._counts, self._outermost = slot, name, counts, outermost

    def __getattr__(self, method: str) -> Any:
        function = getattr(self._slot, method)
        if not callable(function):
            return function
        counted = self._observed(method, function) if self._outermost else self._counted(method, function)
        self.__dict__[method] = counted
        return counted

    def _counted(self, method: str, function: Callable[..., Any]) -> Callable[..., Any]:
        counts, name = self._counts, self._name
        is_transfer = name == "storage" and method in TRANSFERS

        def call(*arguments: Any, **options: Any) -> Any:
            counts.calls[name] += 1
            if is_transfer and any(each != "storage" for each in counts.inside):
                counts.transfers[f"{counts.inside[0]}: storage.{method}"] += 1
            return function(*arguments, **options)

        return call

    def _observed(self, method: str, function: Callable[..., Any]) -> Callable[..., Any]:
        counts, name = self._counts, self._name

        def call(*arguments: Any, **options: Any) -> Any:
            observer = None if counts.inside else counts.observer
            if observer is not None:
                observer.before(name, method, arguments, options)
            counts.inside.append(name)
            try:
                result = function(*arguments, **options)
            finally:
                counts.inside.pop()
            if observer is not None:
                observer.after(result)
            return result

        return call


def instrumented(opened: OpenBackend, counts: Counts) -> OpenBackend:
    """The same backend with every slot counted, the derived ones over the counted required ones."""
    table = opened.backend.capabilities()

    def counted(name: str, slot: Any) -> Any:
        return None if slot is None else CountedSlot(slot, name, counts, outermost=False)

    required = Required(**{name: counted(name, getattr(table.required, name)) for name in REQUIRED_SLOTS})
    optional = {name: counted(name, getattr(table, name)) for name in OPTIONAL_SLOTS}
    tools = fill(Capabilities(required=required, **optional))
    shown: dict[str, Any] = {
        name: CountedSlot(getattr(tools, name), name, counts, outermost=True)
        for name in (*REQUIRED_SLOTS, *OPTIONAL_SLOTS)
    }
    return dataclasses.replace(opened, tools=dataclasses.replace(tools, **shown))


@contextmanager
def watching_derived(counts: Counts) -> Iterator[None]:
    """Counts entries into `turret.derived`, also by a native slot that falls back to it. Open the backend inside.

    The classes themselves are wrapped: a plugin holds instances that nobody else sees.
    """
    kept: list[tuple[type, str, Callable[..., Any]]] = []
    for slot in OPTIONAL_SLOTS:
        cls = getattr(derived, "Derived" + "".join(word.capitalize() for word in slot.split("_")))
        for name, function in vars(cls).items():
            if callable(function) and not name.startswith("_"):
                kept.append((cls, name, function))
    for cls, name, function in kept:
        setattr(cls, name, _watched(_slot_of(cls), function, counts))
    try:
        yield
    finally:
        for cls, name, function in kept:
            setattr(cls, name, function)


def _slot_of(cls: type) -> str:
    words = "".join(f"_{letter.lower()}" if letter.isupper() else letter for letter in cls.__name__)
    return words.removeprefix("_derived_")


def _watched(slot: str, function: Callable[..., Any], counts: Counts) -> Callable[..., Any]:
    def call(*arguments: Any, **options: Any) -> Any:
        counts.derived[slot] += 1
        return function(*arguments, **options)

    return call
