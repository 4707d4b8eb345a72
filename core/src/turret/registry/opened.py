"""An opened backend: what tensors hold."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from turret.derived import fill
from turret.spi import Backend, BackendInfo, Toolset


@dataclass(frozen=True, slots=True, eq=False)
class OpenBackend:
    """One opened device with every slot filled. Identity is equality: two openings are two backends."""

    name: str
    device: str
    info: BackendInfo
    backend: Backend[Any]
    tools: Toolset[Any]

    @property
    def spec(self) -> str:
        """What `open_backend` would take: "cpu", "cuda:1"."""
        return f"{self.name}:{self.device}" if self.device else self.name

    @classmethod
    def wrap(cls, info: BackendInfo, backend: Backend[Any], device: str = "") -> OpenBackend:
        """The backend with its missing slots composed."""
        return cls(info.name, device, info, backend, fill(backend.capabilities()))
