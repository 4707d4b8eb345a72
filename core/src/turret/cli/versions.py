"""What `turret --version` prints, from installed metadata alone: no plugin is imported."""

from __future__ import annotations

from turret import __version__
from turret.registry.discovery import plugins
from turret.spi import SPI_VERSION


def lines() -> list[str]:
    """Core, the SPI, and one line per plugin distribution with the backends it brings."""
    found: dict[str, list[str]] = {}
    for plugin in plugins():
        found.setdefault(f"{plugin.distribution} {plugin.version}", []).append(plugin.name)
    brought = [f"{distribution} ({', '.join(names)})" for distribution, names in sorted(found.items())]
    return [f"turret {__version__}", f"SPI {SPI_VERSION[0]}.{SPI_VERSION[1]}", *brought]
