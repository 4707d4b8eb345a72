"""The opened device: where new arrays go, and the one door through which slots run their programs."""

from __future__ import annotations

from collections.abc import Callable
from typing import NoReturn, TypeVar

from turret.spi import CaptureError, OpenedHere, OutOfMemory

from .library import jax
from .programs import ANY, SMALL, Program

R = TypeVar("R")

READS = (
    jax.errors.ConcretizationTypeError,
    jax.errors.TracerArrayConversionError,
    jax.errors.TracerIntegerConversionError,
)


class Place:
    """Programs run in the process that opened the device only, and fail with turret's errors.

    interpret: Pallas kernels are interpreted; a CPU runs them in no other way.
    """

    def __init__(self, device: jax.Device, spec: str, *, interpret: bool = False) -> None:
        self.device, self.spec, self.interpret = device, spec, interpret
        self._here = OpenedHere(spec)
        self._quick = (ANY if interpret else SMALL) if device.platform == "cpu" else 0

    def run(self, program: Callable[..., R], /, *operands: object, **options: object) -> R:
        """The program's result.

        Raises: BackendUnavailable in a forked child, where JAX would hang; OutOfMemory; CaptureError.
        """
        self._here.check()
        if isinstance(program, Program):
            program = program.fitting(operands, options, quick=self._quick)
        try:
            return program(*operands, **options)
        except jax.errors.JaxRuntimeError as error:
            self._failed(error)
        except READS as error:
            raise CaptureError(
                "a function that is being compiled reads the value of an array on the host (`if`, `float()`, `int()`, "
                "an index or NumPy), where it has none yet; keep the decision on the device with elementwise.where, "
                "or return the array and read it after the call"
            ) from error
        except jax.errors.UnexpectedTracerError as error:
            raise CaptureError(
                "an array outlived the compilation it was made in: the compiled function stored it outside, and it has "
                "no values there; return it from the function instead"
            ) from error

    def _failed(self, error: jax.errors.JaxRuntimeError) -> NoReturn:
        first = str(error).splitlines()[0] if str(error) else type(error).__name__
        if "RESOURCE_EXHAUSTED" not in first:
            raise error
        raise OutOfMemory(
            f"{self.spec} has no room for the result ({first}); free arrays, or make the batch, the context or the "
            f"model smaller"
        ) from error
