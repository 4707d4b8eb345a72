"""Which plugins are installed, and what they announce; each one is loaded apart from the others."""

from __future__ import annotations

import importlib.metadata
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from types import ModuleType
from typing import Literal

import pluggy

from turret.spi import BackendInfo, ConfigError, PluginError, TurretError, hooks

from .guard import Failure, attempt
from .handshake import check
from .variables import PluginFilter

GROUP = hooks.PROJECT
_UNKNOWN = "unknown"

State = Literal["installed", "loadable", "usable"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One backend that a distribution brings, or one plugin that could not be loaded.

    installed: metadata was found, `error` says why it goes no further. loadable: `info` is there and was checked.
    usable: a probe ran a real operation on the default device.
    """

    name: str
    distribution: str
    version: str
    state: State
    info: BackendInfo | None = None
    error: TurretError | None = None

    def loaded(self) -> BackendInfo:
        """The checked data; raises a copy of the recorded error, with its cause, where there is none."""
        if self.info is not None:
            return self.info
        assert self.error is not None
        raise type(self.error)(*self.error.args) from self.error.__cause__


@dataclass(frozen=True, slots=True, kw_only=True)
class Plugin:
    """One entry point of group `turret`, not yet imported."""

    name: str
    distribution: str
    version: str
    point: importlib.metadata.EntryPoint | Failure

    def __str__(self) -> str:
        return f"plugin {self.name!r} of {self.distribution} {self.version}"

    def broken(self, error: TurretError, cause: BaseException | None = None) -> Entry:
        """The entry that says why this plugin goes no further."""
        error.__cause__ = cause
        return Entry(
            name=self.name, distribution=self.distribution, version=self.version, state="installed", error=error
        )


def plugins() -> list[Plugin]:
    """Every installed plugin, ordered by name and distribution. Reads metadata only, imports nothing."""
    found: dict[tuple[str, str, str], Plugin] = {}
    claimed: dict[str, importlib.metadata.Distribution] = {}
    for distribution, points in _distributions():
        name = _text(distribution, "Name")
        # An editable install shows up twice on the path; the first one is the one Python would import.
        if name != _UNKNOWN and claimed.setdefault(_canonical(name), distribution) is not distribution:
            continue
        version = _text(distribution, "Version")
        if isinstance(points, Failure):
            found[name, name, ""] = Plugin(name=name, distribution=name, version=version, point=points)
            continue
        for point in points:
            plugin = Plugin(name=point.name, distribution=name, version=version, point=point)
            found[point.name, name, point.value] = plugin
    return [found[key] for key in sorted(found)]


def entries(environ_filter: PluginFilter, registered: list[BackendInfo]) -> list[Entry]:
    """What every plugin and every in-process registration brings; a name claimed twice is nobody's."""
    found = [entry for plugin in plugins() for entry in _load(plugin, environ_filter.blocker(plugin.name))]
    found += [
        Entry(name=info.name, distribution=info.distribution, version="registered", state="loadable", info=info)
        for info in registered
    ]
    return [_unless_claimed_twice(entry, found) for entry in sorted(found, key=lambda e: (e.name, e.distribution))]


def _distributions() -> Iterator[tuple[importlib.metadata.Distribution, list[importlib.metadata.EntryPoint] | Failure]]:
    # entry_points() would do, but it stops at the first distribution whose metadata cannot be parsed.
    for distribution in importlib.metadata.distributions():
        text = attempt(partial(distribution.read_text, "entry_points.txt"))
        if isinstance(text, str) and f"[{GROUP}]" in text:
            yield distribution, attempt(partial(_points, distribution))


def _points(distribution: importlib.metadata.Distribution) -> list[importlib.metadata.EntryPoint]:
    return [point for point in distribution.entry_points if point.group == GROUP]


def _text(distribution: importlib.metadata.Distribution, field: str) -> str:
    text = attempt(lambda: distribution.metadata[field])
    return text if isinstance(text, str) else _UNKNOWN


def _canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _load(plugin: Plugin, blocker: str) -> list[Entry]:
    if blocker:
        return [plugin.broken(ConfigError(f"{plugin} is switched off by {blocker}; change that variable to use it"))]
    if isinstance(plugin.point, Failure):
        text = f"{plugin}: its entry points cannot be read: {plugin.point}"
        return [plugin.broken(PluginError(text), plugin.point.error)]
    module = attempt(plugin.point.load)
    if isinstance(module, Failure):
        text = f"{plugin} raised {module} while it was imported; upgrade it, or: pip uninstall {plugin.distribution}"
        return [plugin.broken(PluginError(text), module.error)]
    announced = attempt(lambda: _announced(module, plugin.name))
    if isinstance(announced, Failure):
        return [plugin.broken(PluginError(f"{plugin}: {announced}; report it to its authors"), announced.error)]
    return [_checked(plugin, info) for info in announced]


def _announced(module: ModuleType, name: str) -> list[object]:
    manager = pluggy.PluginManager(GROUP)
    manager.add_hookspecs(hooks)
    manager.register(module, name)
    manager.check_pending()
    hook = manager.hook.turret_backends
    if not hook.get_hookimpls():
        raise PluginError("it has no turret_backends() marked with turret.spi.hookimpl")
    infos: list[object] = []
    for answer in hook():
        if not isinstance(answer, list):
            raise PluginError(f"turret_backends() gave {answer!r}, wanted a list of BackendInfo")
        infos += answer
    if not infos:
        raise PluginError("turret_backends() announced no backend")
    names = [info.name if isinstance(info, BackendInfo) else name for info in infos]
    if name not in names:
        raise PluginError(f"its entry point is named {name!r}, but it announced {names}: one of them needs that name")
    return infos


def _checked(plugin: Plugin, announced: object) -> Entry:
    try:
        info = check(announced)
        if _canonical(info.distribution) != _canonical(plugin.distribution):
            raise PluginError(f"states distribution={info.distribution!r}, wanted the one that brings it")
    except PluginError as error:
        name = announced.name if isinstance(announced, BackendInfo) else plugin.name
        return replace(plugin.broken(type(error)(f"{plugin}: {error}"), error), name=str(name))
    return Entry(name=info.name, distribution=plugin.distribution, version=plugin.version, state="loadable", info=info)


def _unless_claimed_twice(entry: Entry, found: list[Entry]) -> Entry:
    claims = [f"{other.distribution} {other.version}" for other in found if other.name == entry.name]
    if len(claims) == 1:
        return entry
    error = PluginError(
        f"backend name {entry.name!r} is claimed by {' and by '.join(sorted(claims))}: neither is used; uninstall one"
    )
    error.__cause__ = entry.error
    return replace(entry, state="installed", info=None, error=error)
