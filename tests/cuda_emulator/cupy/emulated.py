"""What tests set and ask of the emulated device; nothing like it is in CuPy."""

from __future__ import annotations

from cupy_backends.emulated.faults import RaceFound as RaceFound
from cupy_backends.emulated.faults import RedZoneDamaged as RedZoneDamaged
from cupy_backends.emulated.heap import heap as _heap
from cupy_backends.emulated.launch import launches as launches
from cupy_backends.emulated.launch import settings as settings
from cupy_backends.emulated.machine import machine as _machine


def set_total_memory(nbytes: int) -> None:
    """How much memory the device has; 4 GiB at first."""
    _machine.total_bytes = nbytes


def set_driver(version: int | None) -> None:
    """Which driver is installed: None for none; one below the runtime's 13000 is too old."""
    _machine.driver = version
    _machine.judge()


def set_device_count(count: int) -> None:
    """Whether there is a device, 0 or 1."""
    if count not in (0, 1):
        raise ValueError(f"the emulator has 0 or 1 devices, got {count}")
    _machine.devices = count
    _machine.judge()


def reset() -> None:
    """Mends a broken device: its queued work and captures are lost, memory stays, red zones are painted anew."""
    _machine.reset()
    _heap.repair()
