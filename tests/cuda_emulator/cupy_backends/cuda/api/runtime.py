"""The part of the CUDA runtime that the plugin calls, over one emulated device."""

from __future__ import annotations

from cupy_backends.emulated import faults as _faults
from cupy_backends.emulated.faults import CUDARuntimeError as CUDARuntimeError
from cupy_backends.emulated.heap import heap as _heap
from cupy_backends.emulated.machine import RUNTIME_VERSION as _RUNTIME_VERSION
from cupy_backends.emulated.machine import machine as _machine
from cupy_backends.emulated.queues import synchronize_device as _synchronize_device


def driverGetVersion() -> int:
    """The driver's version, 0 without a driver."""
    return _machine.driver or 0


def runtimeGetVersion() -> int:
    return _RUNTIME_VERSION


def getDeviceCount() -> int:
    _machine.check()
    return _machine.devices


def getDevice() -> int:
    _machine.check()
    return 0


def setDevice(device: int) -> None:
    _machine.check()
    _refuse_other(device)


def getDeviceProperties(device: int) -> dict[str, object]:
    _machine.check()
    _refuse_other(device)
    return {
        "name": b"emulated on the host",
        "totalGlobalMem": _machine.total_bytes,
        "multiProcessorCount": 2,
        "major": 9,
        "minor": 0,
    }


def memGetInfo() -> tuple[int, int]:
    """Bytes that are free and bytes in total."""
    _machine.check()
    return _machine.total_bytes - _heap.allocated_bytes, _machine.total_bytes


def deviceSynchronize() -> None:
    _synchronize_device()


def _refuse_other(device: int) -> None:
    if not 0 <= device < _machine.devices:
        raise CUDARuntimeError(_faults.INVALID_DEVICE)
