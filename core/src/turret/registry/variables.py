"""The environment variables that steer discovery and choice: read when used, parsed strictly, near misses noticed."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass

from turret.spi import ConfigError

from .names import NAME

BACKEND = "TURRET_BACKEND"
PLUGINS = "TURRET_PLUGINS"
DISABLE_PLUGINS = "TURRET_DISABLE_PLUGINS"
VARIABLES = (BACKEND, PLUGINS, DISABLE_PLUGINS)


@dataclass(frozen=True, slots=True, kw_only=True)
class PluginFilter:
    """Which plugins may be imported. `allowed` is None where every plugin may; a disabled one never is."""

    allowed: frozenset[str] | None
    disabled: frozenset[str]

    @classmethod
    def read(cls, environ: Mapping[str, str]) -> PluginFilter:
        """From TURRET_PLUGINS and TURRET_DISABLE_PLUGINS.

        Raises: ConfigError for anything but names separated by commas.
        """
        allowed = _names(environ, PLUGINS)
        return cls(allowed=allowed, disabled=_names(environ, DISABLE_PLUGINS) or frozenset())

    def blocker(self, name: str) -> str:
        """The variable that keeps this plugin from being imported, or ""."""
        if name in self.disabled:
            return DISABLE_PLUGINS
        return PLUGINS if self.allowed is not None and name not in self.allowed else ""

    def unknown(self, names: frozenset[str]) -> list[str]:
        """One sentence for each variable that names a plugin which is not installed."""
        given = ((PLUGINS, self.allowed or frozenset()), (DISABLE_PLUGINS, self.disabled))
        return [
            f"{variable} names plugins that are not installed: {', '.join(sorted(words - names))}"
            for variable, words in given
            if words - names
        ]


def seen(environ: Mapping[str, str]) -> dict[str, str]:
    """The variables turret reads that are set, with their values."""
    return {name: environ[name] for name in VARIABLES if name in environ}


def near_misses(environ: Mapping[str, str]) -> dict[str, str]:
    """Variables that turret does not read but that look like one it does, each with the one probably meant."""
    found = {}
    for name in environ:
        close = difflib.get_close_matches(name.upper(), VARIABLES, n=1, cutoff=0.85)
        if close and name not in VARIABLES:
            found[name] = close[0]
    return found


def _names(environ: Mapping[str, str], variable: str) -> frozenset[str] | None:
    text = environ.get(variable)
    if text is None:
        return None
    words = text.split(",")
    if not all(NAME.fullmatch(word) for word in words):
        raise ConfigError(
            f"{variable}={text!r} is not a list of plugin names; wanted names separated by commas and nothing else, "
            f'such as "cpu,cuda"; leave it unset to allow every plugin'
        )
    return frozenset(words)
