"""Says why a GPU, or the emulator that stands in for one in the tests, cannot be used here, by trying it."""

from __future__ import annotations

from . import toolkit

DEVICES = "nothing for the first GPU, or its number counted from 0, as in cuda:1"
OLDEST_CUPY = 14
OLDEST_CAPABILITY = 75


def unknown_device(device: str) -> str | None:
    """The reason why `device` names nothing, or None."""
    if device in ("", "emulated") or (device.isascii() and device.isdigit() and len(device) < 10):
        return None
    return f"cuda has no device {device!r}; wanted {DEVICES}"


def why_not(device: str) -> str | None:
    """None when a kernel and a product on the device come out right, else the reason in one line."""
    if (reason := unknown_device(device)) is not None:
        return reason
    stand_in = device == "emulated"
    if not stand_in and len(found := toolkit.wheels()) > 1:
        return toolkit.too_many(found)
    try:
        from . import library
    except ModuleNotFoundError as error:
        return toolkit.NO_CUPY if error.name == "cupy" else toolkit.does_not_load(error)
    except (ImportError, OSError) as error:  # a native library that does not load raises OSError
        return toolkit.does_not_load(error)
    if library.emulated() is not stand_in:
        return _wrong_cupy(stand_in)
    return _no_device(device) or (None if stand_in else _incomplete()) or _trial(device)


def _wrong_cupy(stand_in: bool) -> str:
    if stand_in:
        return "cuda:emulated is the emulator of turret's own tests, and this is CuPy itself: use `cuda`, or `cuda:1`"
    return (
        "this CuPy is the emulator of turret's tests, which has no GPU: ask for `cuda:emulated`, or take the "
        "emulator's folder off the import path (PYTHONPATH)"
    )


def _no_device(device: str) -> str | None:
    """What driver and devices have against it."""
    import cupy
    from cupy.cuda.runtime import CUDARuntimeError

    number, runtime = int(device) if device.isdigit() else 0, cupy.cuda.runtime
    built_with, driver = runtime.runtimeGetVersion(), runtime.driverGetVersion()
    try:
        count = runtime.getDeviceCount()
    except CUDARuntimeError as error:
        return toolkit.refused(error, driver, built_with)
    if number >= count:
        return (
            f"there is no GPU number {number} here: CUDA finds {count}, counted from 0; `cuda` is the first "
            f"(does CUDA_VISIBLE_DEVICES hide one?)"
        )
    try:
        capability = cupy.cuda.Device(number).compute_capability
    except CUDARuntimeError as error:
        return toolkit.refused(error, driver, built_with)
    return too_small(capability)


def too_small(capability: str) -> str | None:
    """The reason against a compute capability, written without its point as CuPy does: 70 is 7.0."""
    if int(capability) >= OLDEST_CAPABILITY:
        return None
    return (
        f"this GPU has compute capability {capability[:-1]}.{capability[-1]}, and the kernels need 7.5 or higher "
        f"(Turing, 2018, or newer); use another backend, such as `cpu`"
    )


def _incomplete() -> str | None:
    """What is too old or missing of CuPy and the CUDA toolkit, or does not go with the driver."""
    import cupy

    if int(str(cupy.__version__).split(".")[0]) < OLDEST_CUPY:
        return f"CuPy {cupy.__version__} is too old, wanted {OLDEST_CUPY}.0 or newer; run: {toolkit.upgrade()}"
    runtime = cupy.cuda.runtime
    built_with = runtime.runtimeGetVersion()
    found = toolkit.libraries(built_with)
    return found if isinstance(found, str) else toolkit.ahead(runtime.driverGetVersion(), built_with, found)


def _trial(device: str) -> str | None:
    """Turns a small matrix by a kernel of ours and multiplies it by itself."""
    import numpy as np

    from turret.spi import BackendUnavailable, OutOfMemory

    from .arrays import FLOAT32
    from .cublas import Operand
    from .library import FAILURES
    from .place import place_of

    host, result = np.arange(6, dtype=np.float32).reshape(2, 3), np.empty((2, 2), np.float32)
    try:
        place = place_of(device)
        x, product = place.empty(host.shape, FLOAT32), place.empty(result.shape, FLOAT32)
        place.upload(x, host)
        turned = place.copied(x.transpose())
        a, b, c = (Operand(each.data.ptr, each.shape[1]) for each in (x, turned, product))
        place.multiply(lambda blas: blas.strided(FLOAT32, (1, 2, 2, 3), a, b, c), x, turned, product)
        place.download(product, result.ctypes.data)
    except (BackendUnavailable, OutOfMemory) as error:
        return str(error)
    except FAILURES as error:
        return f"{' '.join(str(error).split())}; is another process using the GPU alone, or its memory? see nvidia-smi"
    if (result == host @ host.T).all():
        return None
    return f"a small product came out as {result.tolist()}, wanted {(host @ host.T).tolist()}; restart the machine"
