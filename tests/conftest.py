from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from turret.registry import OpenBackend, open_backend, use_backend
from turret.spi import BackendInfo, Capabilities, Required
from turret.spi.array_api import Hooks, required_from

QUIET = Hooks(quiet=lambda: np.errstate(all="ignore"))
Make = Callable[..., OpenBackend]


class Table:
    """A backend that is nothing but a table."""

    def __init__(self, table: Capabilities[Any]) -> None:
        self.table = table

    def capabilities(self) -> Capabilities[Any]:
        return self.table

    def close(self) -> None:
        pass


def array_api(required: Required[Any] | None = None, *, name: str = "plain", **slots: Any) -> OpenBackend:
    """A fresh backend over NumPy's array API namespace alone; slots and required ones can be replaced."""
    info = BackendInfo(
        name=name, distribution=f"turret-{name}", spi=">=1.0,<2", target="nowhere:nothing", probe="no:no"
    )
    table = Capabilities(required=required or required_from(np, hooks=QUIET), **slots)
    return OpenBackend.wrap(info, Table(table))


@pytest.fixture(scope="session")
def make_backend() -> Make:
    return array_api


@pytest.fixture(scope="module")
def plain() -> Iterator[OpenBackend]:
    """The current backend: the six required slots over NumPy, everything else derived."""
    with use_backend(array_api()) as opened:
        yield opened


@pytest.fixture(scope="module", params=["array_api", "cpu"])
def backend(request: pytest.FixtureRequest) -> Iterator[OpenBackend]:
    """The current backend: each one that a test of the layers above must hold on."""
    with use_backend(array_api() if request.param == "array_api" else open_backend("cpu")) as opened:
        yield opened
