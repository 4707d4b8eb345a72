from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import cupy
import pytest
from cupy.cuda import MemoryPool, Stream, runtime
from cupy.cuda.runtime import CUDARuntimeError

pytestmark = pytest.mark.usefixtures("device")

EMULATOR = Path(__file__).parents[2] / "cuda_emulator"
CALLS: list[Callable[[], object]] = [
    runtime.getDeviceCount,
    runtime.getDevice,
    lambda: runtime.setDevice(0),
    lambda: runtime.getDeviceProperties(0),
    runtime.memGetInfo,
    runtime.deviceSynchronize,
    lambda: MemoryPool().malloc(8),
    lambda: Stream(non_blocking=True),
    lambda: cupy.cuda.Device(),
    lambda: cupy.RawModule(code="").get_function("f").kernel,
]


def test_one_device_answers() -> None:
    assert (runtime.getDeviceCount(), runtime.getDevice()) == (1, 0)
    assert (runtime.driverGetVersion(), runtime.runtimeGetVersion()) == (13000, 13000)
    found = runtime.getDeviceProperties(0)
    assert (found["name"], found["multiProcessorCount"]) == (b"emulated on the host", 2)
    assert (found["totalGlobalMem"], found["major"], found["minor"]) == (4 << 30, 9, 0)
    assert runtime.memGetInfo()[1] == 4 << 30
    with cupy.cuda.Device(0) as device:
        assert (device.id, int(device), device.compute_capability) == (0, 0, "90")
        assert device.mem_info == runtime.memGetInfo()
    assert cupy.cuda.Device().id == 0


def test_there_is_no_second_device() -> None:
    other = cupy.cuda.Device(9)
    for call in (lambda: runtime.setDevice(9), other.use, other.__enter__, lambda: other.compute_capability):
        with pytest.raises(CUDARuntimeError, match=r"^cudaErrorInvalidDevice: invalid device ordinal$") as caught:
            call()
        assert caught.value.status == 101


@pytest.mark.parametrize("version", [None, 12040])
def test_without_a_new_enough_driver_every_call_says_so(version: int | None) -> None:
    cupy.emulated.set_driver(version)
    for call in CALLS:
        with pytest.raises(CUDARuntimeError, match=r"^cudaErrorInsufficientDriver: CUDA driver version is") as caught:
            call()
        assert caught.value.status == 35
    assert (runtime.driverGetVersion(), runtime.runtimeGetVersion()) == (version or 0, 13000)


def test_without_a_device_every_call_says_so() -> None:
    cupy.emulated.set_device_count(0)
    with pytest.raises(CUDARuntimeError, match=r"^cudaErrorNoDevice: no CUDA-capable device is detected$") as caught:
        runtime.getDeviceCount()
    assert caught.value.status == 100
    with pytest.raises(ValueError, match="0 or 1 devices, got 2"):
        cupy.emulated.set_device_count(2)


def run(code: str, **variables: str) -> str:
    environ = {**os.environ, "PYTHONPATH": str(EMULATOR), **variables}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environ, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


FORKED = """
import os, cupy
if {used}:
    pool = cupy.cuda.MemoryPool()
    stream = cupy.cuda.Stream(non_blocking=True)
    kept = pool.malloc(8)
child = os.fork()
if child:
    os.waitpid(child, 0)
else:
    for call in ({calls}):
        try:
            call()
            print("fine")
        except cupy.cuda.runtime.CUDARuntimeError as error:
            print(error.status, error)
"""


def test_a_child_of_a_process_that_used_the_device_cannot() -> None:
    calls = "stream.synchronize, lambda: kept.memset_async(0, 8, stream), lambda: pool.malloc(8), cupy.cuda.Event"
    lines = run(FORKED.format(used=True, calls=calls)).splitlines()
    assert lines == ["3 cudaErrorInitializationError: initialization error"] * 4


def test_a_child_of_a_process_that_did_not_can() -> None:
    calls = "lambda: cupy.cuda.Stream(non_blocking=True).synchronize(), lambda: cupy.cuda.MemoryPool().malloc(8)"
    assert run(FORKED.format(used=False, calls=calls)).split() == ["fine", "fine"]


def test_the_environment_chooses_the_order() -> None:
    assert run("import cupy; print(cupy.emulated.settings.order)", TURRET_EMULATED_ORDER="all").strip() == "all"
    assert run("import cupy; print(cupy.emulated.settings.order)").strip() == "forward"
