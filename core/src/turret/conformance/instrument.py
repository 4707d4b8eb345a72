"""Proof of execution: every slot wrapped so that calls, host transfers and derived compositions are counted."""

from __future__ import annotations

import dataclasses
import functools
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import Any, Protocol

import numpy as np

import turret.derived as derived
from turret.derived import fill
from turret.registry import OpenBackend
from turret.spi import OPTIONAL_SLOTS, REQUIRED_SLOTS, Capabilities, Required

TRANSFERS = {"from_host", "to_host"}
CONVERSIONS = ("array", "asarray", "ascontiguousarray", "from_dlpack")
METHODS = ("__array__", "numpy", "tolist", "item")


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
        self.last: tuple[str, str, tuple[Any, ...], dict[str, Any]] | None = None

    def transferred(self, how: str) -> None:
        """An array goes through the host; that counts where a slot other than storage is at work."""
        if self.inside and self.inside[-1] != "storage":
            self.transfers[f"{self.inside[0]}: {how}"] += 1

    @property
    def last_call(self) -> str:
        """The latest outermost call that was more than a transfer, in words; "" where there is none."""
        if self.last is None:
            return ""
        slot, method, arguments, options = self.last
        given = [_in_words(x) for x in arguments] + [f"{key}={_in_words(x)}" for key, x in options.items()]
        return f"{slot}.{method}({', '.join(given)})"

    def reset(self) -> None:
        self.last = None
        self.calls.clear()
        self.transfers.clear()
        self.derived.clear()


def _in_words(x: Any) -> str:
    """Arrays by their shape, everything else as it is written."""
    if isinstance(x, tuple | list):
        return f"[{', '.join(map(_in_words, x))}]" if len(x) < 5 else f"{len(x)} values"
    shape = getattr(x, "shape", None)
    return repr(x) if shape is None or isinstance(x, bool | int | float | str) else f"array{list(shape)}"


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
            if not is_transfer:
                return function(*arguments, **options)
            counts.transferred(f"storage.{method}")
            counts.inside.append(name)
            try:
                return function(*arguments, **options)
            finally:
                counts.inside.pop()

        return call

    def _observed(self, method: str, function: Callable[..., Any]) -> Callable[..., Any]:
        counts, name = self._counts, self._name

        def call(*arguments: Any, **options: Any) -> Any:
            observer = None if counts.inside else counts.observer
            if observer is not None:
                observer.before(name, method, arguments, options)
            if not counts.inside and name != "storage":
                counts.last = (name, method, arguments, options)
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


def uncounted(opened: OpenBackend) -> OpenBackend:
    """The same backend without counters, which threads may not share. To core it is another one: tensors do not mix."""
    return OpenBackend.wrap(opened.info, opened.backend, opened.device)


@contextmanager
def watching_derived(counts: Counts) -> Iterator[None]:
    """Counts entries into `turret.derived`, also by a native slot that falls back to it. Open the backend inside.

    The classes themselves are wrapped: a plugin holds instances that nobody else sees.
    """
    kept: list[tuple[str, type, str, Callable[..., Any]]] = []
    for slot in OPTIONAL_SLOTS:
        cls = getattr(derived, "Derived" + "".join(word.capitalize() for word in slot.split("_")))
        for name, function in vars(cls).items():
            if callable(function) and not name.startswith("_"):
                kept.append((slot, cls, name, function))
    for slot, cls, name, function in kept:
        setattr(cls, name, _watched(slot, function, counts))
    try:
        yield
    finally:
        for _, cls, name, function in kept:
            setattr(cls, name, function)


@contextmanager
def watching_host(counts: Counts, native: type[Any]) -> Iterator[None]:
    """Counts a native slot's own conversions of device arrays to host arrays, as far as Python can see them.

    Where the library's arrays are NumPy's there is no other side to go to. Types written in C keep their methods to
    themselves; NumPy's own functions are seen for all.
    """
    if issubclass(native, np.ndarray):
        yield
        return
    with ExitStack() as patches:
        for name in CONVERSIONS:
            patches.enter_context(_patched(np, name, native, counts))
        for name in METHODS:
            with suppress(TypeError, AttributeError):  # a type that cannot be changed
                patches.enter_context(_patched(native, name, native, counts))
        yield


@contextmanager
def _patched(owner: Any, name: str, native: type[Any], counts: Counts) -> Iterator[None]:
    kept = getattr(owner, name)

    @functools.wraps(kept)
    def watched(*arguments: Any, **options: Any) -> Any:
        if arguments and isinstance(arguments[0], native):
            counts.transferred(f"{owner.__name__}.{name}")
            counts.inside.append("storage")  # asarray calls __array__: one transfer, not two
            try:
                return kept(*arguments, **options)
            finally:
                counts.inside.pop()
        return kept(*arguments, **options)

    own = name in vars(owner)
    setattr(owner, name, watched)
    try:
        yield
    finally:
        if own:
            setattr(owner, name, kept)
        else:
            delattr(owner, name)


def _watched(slot: str, function: Callable[..., Any], counts: Counts) -> Callable[..., Any]:
    def call(*arguments: Any, **options: Any) -> Any:
        counts.derived[slot] += 1
        return function(*arguments, **options)

    return call
