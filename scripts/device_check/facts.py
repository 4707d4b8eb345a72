"""The part `facts`: opens the device, loads every kernel, and says what there is."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import time
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from .request import Request, Teller

LIBRARIES = ("core", "turret-cpu", "turret-cuda", "numpy", "numba", "cupy-cuda13x", "cupy-cuda12x", "torch", "triton")


def run(request: Request, tell: Teller) -> None:
    """Tells that the device is unusable where it does not open; an emulated one opens by its own word only."""
    from turret.registry import open_backend
    from turret.spi import FLOATS, TurretError

    tell.put(
        cores=len(os.sched_getaffinity(0)),
        python=platform.python_version(),
        platform=f"{platform.system()} {platform.machine()}",
        libraries={name: found for name in LIBRARIES if (found := _version(name))},
    )
    try:
        opened = open_backend(request.spec)
    except TurretError as error:
        tell.unusable(str(error))
        return
    device, tools = opened.tools.storage.device(), opened.tools
    memory = tools.storage.memory()
    tell.put(
        device=device.name,
        memory_bytes=None if memory is None else memory.total_bytes,
        native=sorted(tools.native),
        accumulation={dtype: tools.matmul.accumulation(dtype) for dtype in sorted(device.dtypes & FLOATS)},
    )
    if opened.name == "cuda":
        tell.put(**_cuda(int(opened.device) if opened.device.isdigit() else 0, emulated=request.emulated))
    began = time.perf_counter()
    program = tools.compile.compile(lambda x: (tools.elementwise.add(x, 1.0),))
    got = tools.storage.to_host(program(tools.storage.full((3,), 1.0, dtype="float32"))[0]).tolist()
    tell.put(loading_s=round(time.perf_counter() - began, 3))
    tell.end([] if got == [2.0] * 3 else [f"1 + 1 is {got}"])


def _cuda(number: int, *, emulated: bool) -> dict[str, Any]:
    import cupy

    runtime = cupy.cuda.runtime
    capability = str(cupy.cuda.Device(number).compute_capability)
    return {
        "compute_capability": f"{capability[:-1]}.{capability[-1]}",
        "driver": _dotted(runtime.driverGetVersion()),
        "driver_release": None if emulated else _release(number),
        "runtime": _dotted(runtime.runtimeGetVersion()),
        "cublas": None if emulated else _cublas(),
        "cupy": str(cupy.__version__),
    }


def _dotted(number: int) -> str:
    return f"{number // 1000}.{number % 1000 // 10}"


def _cublas() -> str:
    import ctypes

    from turret_cuda.cublas import library

    parts = []
    for which in range(3):  # major, minor, patch
        value = ctypes.c_int()
        if library().cublasGetProperty(which, ctypes.byref(value)):
            return "unknown"
        parts.append(str(value.value))
    return ".".join(parts)


def _release(number: int) -> str | None:
    program = shutil.which("nvidia-smi")
    if program is None:
        return None
    command = [program, f"--id={number}", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() or None


def _version(distribution: str) -> str | None:
    try:
        return version(distribution)
    except PackageNotFoundError:
        return None
