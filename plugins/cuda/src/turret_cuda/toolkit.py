"""Which driver, CuPy wheel and CUDA libraries there are, what does not go together, and what to run then."""

from __future__ import annotations

from importlib.metadata import distributions

NO_CUPY = "CuPy is not installed; run: pip install 'core[cuda]' (CUDA 13) or pip install 'core[cuda12]' (CUDA 12)"

# Each brings a folder named cupy, and they overwrite each other's files.
WHEELS = ("cupy", *(f"cupy-cuda{major}x" for major in range(11, 20)), "cupy-rocm-5-0", "cupy-rocm-7-0", "cupy-rocm-7-1")

# The first driver for Linux that each major version of CUDA works with.
DRIVERS = {12: 525, 13: 580}
EXTRAS = {12: "core[cuda12]", 13: "core[cuda]"}

NOT_INITIALIZED, INSUFFICIENT_DRIVER, NO_DEVICE = 3, 35, 100
BROKEN = range(700, 720)  # what a kernel's fault leaves behind: every later call of the process fails
CUBLAS_MAJOR = 0


def wheels() -> list[str]:
    """The installed distributions of CuPy, by name. Reads names of folders only and imports nothing."""
    return [name for name in WHEELS if next(iter(distributions(name=name)), None) is not None]


def too_many(found: list[str]) -> str:
    """What to do about several wheels: one cannot be taken away without the files of the other."""
    return (
        f"several CuPy wheels are installed and overwrite each other's files: {', '.join(found)}; "
        f"run: pip uninstall {' '.join(found)}, and then pip install 'core[cuda]' (CUDA 13) or 'core[cuda12]' (CUDA 12)"
    )


def does_not_load(error: Exception) -> str:
    """The reason for a CuPy that raises while it is imported."""
    said = [line.strip() for line in str(error).splitlines() if line.strip("= ")] or [type(error).__name__]
    return f"CuPy does not load ({said[-1]}); run: {upgrade()} --force-reinstall"


def upgrade() -> str:
    """The pip command for the CuPy that is installed."""
    return f"pip install --upgrade {next(iter(wheels()), 'cupy-cuda13x')}"


def name(version: int) -> str:
    """A version as CUDA counts it, 1000 for each major one and 10 for each minor: 12040 is CUDA 12.4."""
    return f"CUDA {version // 1000}.{version % 1000 // 10}"


def needs(runtime: int) -> str:
    """Which driver a runtime works with."""
    major = runtime // 1000
    oldest = DRIVERS.get(major)
    return f"CUDA {major} needs " + (f"driver {oldest} or newer (on Linux)" if oldest else "a newer driver")


def extra(runtime: int) -> str:
    """The pip command for everything of CUDA that goes with a runtime."""
    return f"pip install '{EXTRAS.get(runtime // 1000, 'core[cuda]')}'"


def refused(error: Exception, driver: int, runtime: int) -> str:
    """Why the runtime does not answer, in words. driver, runtime: versions as CUDA counts them, 0 for no driver."""
    status = getattr(error, "status", None)
    if driver == 0:
        return (
            f"there is no NVIDIA driver here, and {needs(runtime)} with an NVIDIA GPU; in a container, start it "
            f"with the machine's GPUs (docker run --gpus all)"
        )
    if status == INSUFFICIENT_DRIVER:
        return (
            f"the NVIDIA driver is too old: it is for {name(driver)}, and CuPy was built with {name(runtime)}; "
            f"{needs(runtime)}; upgrade the driver{_older(driver, runtime)}"
        )
    if status == NO_DEVICE:
        return (
            f"the driver (for {name(driver)}) finds no GPU; run nvidia-smi to see which there are, and look whether "
            f"CUDA_VISIBLE_DEVICES hides them"
        )
    text = " ".join(str(error).split())
    if status == NOT_INITIALIZED:
        return (
            f"CUDA does not begin in this process: {text}; if it is a fork of one that has used CUDA, start children "
            f"with multiprocessing.get_context('spawn')"
        )
    if status in BROKEN:
        return f"earlier work broke the device for this process: {text}; start it again"
    return f"the driver (for {name(driver)}) does not answer: {text}; does nvidia-smi run? restart the machine if not"


def libraries(runtime: int) -> dict[str, int] | str:
    """The major versions of NVRTC and cuBLAS, or what is missing of the toolkit and how to get it."""
    try:
        from cuda.pathfinder import DynamicLibNotFoundError, find_nvidia_header_directory, load_nvidia_dynamic_lib
        from cupy_backends.cuda.libs import nvrtc
    except (ImportError, OSError) as error:
        return does_not_load(error)
    for library, word in (("the compiler NVRTC", "nvrtc"), ("cuBLAS", "cublas")):
        try:
            load_nvidia_dynamic_lib(word)
        except (DynamicLibNotFoundError, OSError) as error:
            said = str(error).strip().splitlines()[0]
            return f"{library} of CUDA {runtime // 1000} does not load; run: {extra(runtime)} ({said})"
    if find_nvidia_header_directory("cudart") is None:
        return f"CuPy's compiler wants the headers of CUDA {runtime // 1000}, which are not here; run: {extra(runtime)}"
    return {"NVRTC": nvrtc.getVersion()[0], "cuBLAS": cublas_major()}


def cublas_major() -> int:
    """The major version of the cuBLAS that is found, which needs no device. Raises: BackendUnavailable."""
    import ctypes

    from .cublas import library

    major = ctypes.c_int()
    library().cublasGetProperty(CUBLAS_MAJOR, ctypes.byref(major))
    return major.value


def ahead(driver: int, runtime: int, found: dict[str, int]) -> str | None:
    """The reason where a library is of a later CUDA than the driver knows, or None."""
    late = [f"{library} of CUDA {major}" for library, major in found.items() if major > driver // 1000]
    if not late:
        return None
    return (
        f"the NVIDIA driver is for {name(driver)}, and CuPy (built with {name(runtime)}) finds {' and '.join(late)}; "
        f"{needs(max(found.values()) * 1000)}; upgrade the driver, or take those libraries off LD_LIBRARY_PATH and "
        f"CUDA_PATH and run: {extra(runtime)}"
    )


def _older(driver: int, runtime: int) -> str:
    """What else can be done where the driver knows an earlier CUDA that we have an extra for."""
    major = driver // 1000
    if major not in EXTRAS or major >= runtime // 1000:
        return ""
    return f", or run: pip uninstall {' '.join(wheels())}, and then {extra(driver)}, which works with this one"
