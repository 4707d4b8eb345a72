"""What a device calls itself, and whether it can be used."""

from __future__ import annotations

import cupy

from .library import emulated
from .place import Place


def described(place: Place) -> str:
    """Its name, compute capability and CUDA version, for reports."""
    if emulated():
        return "emulated on the host, no GPU"
    name = cupy.cuda.runtime.getDeviceProperties(place.number)["name"].decode()
    capability = cupy.cuda.Device(place.number).compute_capability
    runtime = cupy.cuda.runtime.runtimeGetVersion()
    version = f"CUDA {runtime // 1000}.{runtime % 1000 // 10}"
    return f"{name}, compute capability {capability[:-1]}.{capability[-1]}, {version}, CuPy {cupy.__version__}"


def has_bfloat16(place: Place) -> bool:
    """Whether its tensor cores take bfloat16: from compute capability 8.0 on."""
    return emulated() or int(cupy.cuda.Device(place.number).compute_capability) >= 80
