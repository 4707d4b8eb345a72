from __future__ import annotations

import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from turret.registry import Registry
from turret.spi import BackendInfo

SOURCE = """
import numpy
from turret.spi import Capabilities
from turret.spi.array_api import required_from

openings = []

class Opened:
    def __init__(self, device):
        openings.append(device)
        self.table = Capabilities(required=required_from(numpy))

    def capabilities(self):
        return self.table

    def close(self):
        pass

def why_not(device):
    return None
"""


@pytest.fixture
def registry() -> Registry:
    """Sees in-process registrations only: every installed plugin is kept out."""
    return Registry({"TURRET_PLUGINS": "nothing_installed_has_this_name"}, probe_seconds=20.0)


@pytest.fixture
def backend_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., BackendInfo]]:
    """Writes an importable backend module; the probe, being another process, can import it too."""
    monkeypatch.syspath_prepend(str(tmp_path))
    made = []

    def make(name: str, *, extra: str = "", **fields: Any) -> BackendInfo:
        module = f"{tmp_path.name.replace('-', '_')}_{name}"
        (tmp_path / f"{module}.py").write_text(SOURCE + textwrap.dedent(extra))
        made.append(module)
        facts = {"target": f"{module}:Opened", "probe": f"{module}:why_not", **fields}
        return BackendInfo(name=name, distribution=f"turret-{name}", spi=">=1.0,<2", **facts)

    yield make
    for module in made:
        sys.modules.pop(module, None)
