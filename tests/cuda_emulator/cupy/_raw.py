"""Modules of kernels, compiled when a kernel is first used."""

from __future__ import annotations

from cupy_backends.cuda.api.driver import CUDADriverError
from cupy_backends.emulated.machine import machine

from .cuda.compiler import compiled
from .cuda.function import Function


class RawKernel:
    """One kernel of a source, compiled when first used."""

    def __init__(self, code: str, name: str, options: tuple[str, ...]) -> None:
        self._code = code
        self._name = name
        self._options = options
        self._function: Function | None = None

    @property
    def kernel(self) -> Function:
        """Raises: CompileException for a bad source, CUDADriverError 500 when it has no such kernel."""
        machine.check()
        if self._function is None:
            kernels = compiled(self._code, self._options).kernels
            if self._name not in kernels:
                raise CUDADriverError(500)
            self._function = Function(self._name, kernels[self._name])
        return self._function


class RawModule:
    """A CUDA source of its own, without any include."""

    def __init__(self, *, code: str, options: tuple[str, ...] = ()) -> None:
        if not isinstance(options, tuple):
            raise TypeError(f"options must be a tuple, got {type(options).__name__}")
        self._code = code
        self._options = options

    def compile(self) -> None:
        """Raises: CompileException for a bad source."""
        machine.check()
        compiled(self._code, self._options)

    def get_function(self, name: str) -> RawKernel:
        return RawKernel(self._code, name, self._options)
