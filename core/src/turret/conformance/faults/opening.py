"""Wrong backends as targets, so that a child process or a second opening meets the fault as well."""

from __future__ import annotations

import dataclasses
import importlib
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from turret.derived import fill
from turret.registry import OpenBackend
from turret.spi import BackendInfo

from .catalogue import by_name
from .fault import Fault, Table
from .lifecycle import NOTHING, Closable

SHARED = "second-open-shares-closed-state"
TOUCHING = "import-touches-device"
_KEPT: dict[str, Closable] = {}


class BrokenBackend:
    """A good backend that hands over the table of a fault."""

    def __init__(self, fault: Fault, good: Any) -> None:
        table: Table = good.capabilities()
        self._good, self._table = good, fault.wrap(table, fill(table))

    def capabilities(self) -> Table:
        return self._table

    def close(self) -> None:
        self._good.close()


class Borrowed:
    """A good backend that others go on using: closing it does nothing."""

    def __init__(self, good: Any) -> None:
        self._good = good

    def capabilities(self) -> Table:
        table: Table = self._good.capabilities()
        return table

    def close(self) -> None:
        """The owner closes it."""


def broken(fault: Fault, opened: OpenBackend) -> OpenBackend:
    """The opened backend with the fault in its table and, for a fault of the life cycle, in its target.

    The opened backend itself stays good and open.
    """
    info, device = opened.info, opened.device
    if fault.capability == "lifecycle":
        _KEPT.clear()
        info, device = infected(fault, info, device)
    return OpenBackend.wrap(info, BrokenBackend(fault, Borrowed(opened.backend)), device)


def infected(fault: Fault, info: BackendInfo, device: str) -> tuple[BackendInfo, str]:
    """Info and device string whose target opens the backend with the fault in it."""
    wrong = dataclasses.replace(
        info, target=f"{__name__}:open_broken", probe=f"{__name__}:why_not", devices="<fault>.<target>@<device>"
    )
    if fault.name == TOUCHING:
        wrong = dataclasses.replace(wrong, name="touching", distribution="turret-touching")
    return wrong, f"{fault.name}.{info.target}@{device}"


@contextmanager
def shown(fault: Fault) -> Iterator[None]:
    """While it lasts, a fault that lies in a plugin module is found among the installed plugins."""
    if fault.name != TOUCHING:
        yield
        return
    with tempfile.TemporaryDirectory() as folder:
        facts = Path(folder) / "turret_touching-1.0.dist-info"
        facts.mkdir()
        (facts / "METADATA").write_text("Metadata-Version: 2.1\nName: turret-touching\nVersion: 1.0\n")
        (facts / "entry_points.txt").write_text(f"[turret]\ntouching = {__package__}.touching\n")
        sys.path.append(folder)
        try:
            yield
        finally:
            sys.path.remove(folder)


def why_not(device: str) -> str | None:
    """The probe: the good backend was opened before its faults are looked for."""
    return None


def open_broken(device: str) -> Any:
    """A backend target. device: fault.module:Class@device, the latter two of the good backend."""
    name, _, good = device.partition(".")
    target, _, own = good.partition("@")
    module, _, attribute = target.partition(":")

    def open_good() -> Any:
        return getattr(importlib.import_module(module), attribute)(own)

    if name == SHARED:
        if device not in _KEPT:
            _KEPT[device] = Closable(open_good())
        return _KEPT[device]
    return BrokenBackend(NOTHING if name == NOTHING.name else by_name(name), open_good())
