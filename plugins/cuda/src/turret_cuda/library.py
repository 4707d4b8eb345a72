"""Everything that is taken from CuPy, and its errors in turret's words."""

from __future__ import annotations

from typing import Any, TypeAlias

import cupy
from cupy.cuda.compiler import CompileException
from cupy.cuda.memory import OutOfMemoryError
from cupy.cuda.runtime import CUDARuntimeError as CUDARuntimeError
from cupy_backends.cuda.api.driver import CUDADriverError

from turret.spi import BackendUnavailable, OutOfMemory

X: TypeAlias = Any  # a cupy.ndarray; CuPy states no types

CUDA_ERRORS: tuple[type[Exception], ...] = (CUDARuntimeError, CUDADriverError, CompileException)
FAILURES: tuple[type[Exception], ...] = (OutOfMemoryError, *CUDA_ERRORS)

NO_MEMORY = 2  # the status, in both interfaces of CUDA


def emulated() -> bool:
    """Whether this CuPy is the emulator of the tests, and no GPU is involved."""
    return str(cupy.__version__).endswith("+emulated")


def translated(error: Exception, spec: str) -> Exception:
    """What to raise for an error of CuPy that a device brought up."""
    text = " ".join(str(error).split())
    if isinstance(error, OutOfMemoryError) or getattr(error, "status", None) == NO_MEMORY:
        return OutOfMemory(
            f"{spec}: {text}; make the batch smaller, accumulate gradients over smaller ones, or save memory by "
            f"checkpointing activations"
        )
    return BackendUnavailable(
        f"{spec}: {text}; the device takes no more work from this process: start it again, and look at `turret doctor`"
    )
