"""What a plugin module exposes: cheap data first, the backend itself later."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, TypeVar

from .arrays import Array, DType
from .table import Capabilities

SPI_VERSION = (1, 0)

A_inv = TypeVar("A_inv", bound=Array)


@dataclass(frozen=True, slots=True, kw_only=True)
class BackendInfo:
    """One backend, described without importing it.

    name: the word users type. distribution: what pip installs. spi: the range of SPI versions it was written for, as a
    comma-separated list of comparisons (">=1.0,<2"). target: "package.module:Class", a callable
    `(device: str) -> Backend`. probe: "package.module:why_not", a callable `(device: str) -> str | None` that runs one
    real operation and returns the reason why the device cannot be used. devices: the grammar of the part after the
    colon, for people. provides: optional slots it says are native. dtypes: what its devices may have. score: `auto`
    picks the highest. stand_in_devices: device words that `auto` never picks. install_hint: the command that installs
    its libraries. on_host: what of a device's work runs on the host all the same, as "slot.method: why".
    """

    name: str
    distribution: str
    spi: str
    target: str
    probe: str
    devices: str = ""
    provides: frozenset[str] = frozenset()
    dtypes: frozenset[DType] = frozenset()
    score: int = 0
    stand_in_devices: frozenset[str] = frozenset()
    install_hint: str = ""
    on_host: frozenset[str] = frozenset()


class Backend(Protocol[A_inv]):
    """One opened device. `BackendInfo.target` makes it; opening twice gives two independent objects."""

    def capabilities(self) -> Capabilities[A_inv]:
        """The table of slots; the same objects at every call."""
        ...

    def close(self) -> None:
        """Gives device resources back. Arrays of this backend must not be used afterwards. Calling twice is allowed."""
        ...
