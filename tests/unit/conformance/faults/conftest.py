from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from turret.conformance.faults.catalogue import by_name
from turret.conformance.faults.opening import broken
from turret.registry import OpenBackend
from turret.spi import (
    BackendInfo,
    Capabilities,
    Toolset,
)
from turret.spi.array_api import Hooks, required_from


def set_rows(base: Any, ids: Any, rows: Any, donate: bool) -> Any:
    written = base if donate else base.copy()
    written[ids] = rows
    return written


class NumpyBackend:
    def __init__(self, device: str = "", *, hooks: Hooks | None = None) -> None:
        quiet: Callable[[], Any] = lambda: np.errstate(all="ignore")  # noqa: E731
        self.device = device
        self.table: Capabilities[Any] = Capabilities(
            required=required_from(np, hooks=hooks or Hooks(quiet=quiet, set_rows=set_rows))
        )
        self.is_closed = False

    def capabilities(self) -> Capabilities[Any]:
        return self.table

    def close(self) -> None:
        self.is_closed = True


INFO = BackendInfo(name="plain", distribution="plain", spi=">=1.0,<2", target=f"{__name__}:NumpyBackend", probe="")


@pytest.fixture
def opened() -> OpenBackend:
    return OpenBackend.wrap(INFO, NumpyBackend())


@pytest.fixture
def good(opened: OpenBackend) -> Toolset[Any]:
    return opened.tools


@pytest.fixture
def wrong(opened: OpenBackend) -> Callable[[str], Toolset[Any]]:
    return lambda name: broken(by_name(name), opened).tools


@pytest.fixture
def make() -> Callable[..., OpenBackend]:
    """A good backend of its own; hooks can be given."""
    return lambda **options: OpenBackend.wrap(INFO, NumpyBackend(**options))
