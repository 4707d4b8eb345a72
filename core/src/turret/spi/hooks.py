"""The one hook a plugin implements."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pluggy

if TYPE_CHECKING:
    from .backend import BackendInfo

PROJECT = "turret"
hookspec = pluggy.HookspecMarker(PROJECT)
hookimpl = pluggy.HookimplMarker(PROJECT)


@hookspec
def turret_backends() -> list[BackendInfo]:  # type: ignore[empty-body]
    """The backends this distribution brings. Data only: import no array library, open nothing, read no network."""
