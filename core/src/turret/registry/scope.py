"""Which backend is meant here: an argument, the enclosing `use_backend`, TURRET_BACKEND, or the automatic choice."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from turret.spi import BackendInfo

from .discovery import Entry
from .opened import OpenBackend
from .selection import Registration, Registry

PROCESS = Registry()
SCOPE: ContextVar[OpenBackend | None] = ContextVar("turret_backend", default=None)


def current() -> OpenBackend:
    """The backend new tensors live on: of the enclosing `use_backend`, or the process default. Cheap once opened."""
    return SCOPE.get() or PROCESS.default()


def open_backend(spec: str | OpenBackend | None = None) -> OpenBackend:
    """The opened backend that `spec` names ("cpu", "cuda:1", "auto"); None means `current()`.

    One object per name and device in this process. A named backend is never replaced by another one.
    Raises: ConfigError, BackendNotFound, BackendUnavailable, PluginError, SpiMismatch.
    """
    if spec is None:
        return current()
    return spec if isinstance(spec, OpenBackend) else PROCESS.open(spec)


@contextmanager
def use_backend(spec: str | OpenBackend) -> Iterator[OpenBackend]:
    """Makes `spec` the current backend inside the block, for this thread or task only.

    The backend is opened on entry, so that a wrong name fails there. A new thread starts with the process default.
    """
    opened = open_backend(spec)
    token = SCOPE.set(opened)
    try:
        yield opened
    finally:
        SCOPE.reset(token)


def installed() -> list[Entry]:
    """Every backend that installed plugins bring, broken ones included with their error, ordered by name.

    Raises: ConfigError where TURRET_PLUGINS or TURRET_DISABLE_PLUGINS cannot be read.
    """
    return PROCESS.installed()


def register(info: BackendInfo) -> Registration:
    """Adds a backend to this process without installing it; call the result, or use it in `with`, to take it away.

    Raises: PluginError, SpiMismatch.
    """
    return PROCESS.register(info)
