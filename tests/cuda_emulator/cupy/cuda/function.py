"""Calls of kernels: arguments become the bytes that the kernel takes."""

from __future__ import annotations

import functools
import struct
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from cupy_backends.cuda.api.driver import CUDADriverError
from cupy_backends.emulated.launch import Launch, LaunchedKernel, Sizes
from engine import Kernel

from .._array import ndarray
from .memory import MemoryPointer
from .stream import Stream, queue_of

MOST_THREADS = 1024
_word = struct.Struct("<Q").pack
_long = struct.Struct("<q").pack
_double = struct.Struct("<d").pack
Pack = Callable[[Any], bytes]
# What a parameter of each kind accepts; a GPU would take the bytes for whatever the kernel says they are.
_ACCEPTED = {
    "pointer": ("pointer", "integer"),
    "integer": ("integer",),
    "float": ("float",),
    "struct": ("struct", "float"),
}
_KINDS = {"i": "integer", "u": "integer", "b": "integer", "f": "float", "V": "struct"}


class Function:
    """A kernel that can be launched."""

    def __init__(self, name: str, kernel: Kernel) -> None:
        self._program = LaunchedKernel(name, kernel)
        self._most_shared_bytes = kernel.max_shared_bytes
        self._plans: dict[tuple[type, ...], tuple[Pack, ...]] = {}

    def __call__(
        self,
        grid: tuple[int, ...],
        block: tuple[int, ...],
        args: Sequence[object],
        shared_mem: int = 0,
        stream: Stream | None = None,
    ) -> None:
        """Queues one run over `grid` blocks of `block` threads with `shared_mem` bytes of shared memory.

        Raises: TypeError for arguments that are not the kernel's parameters, CUDADriverError for sizes that no GPU has.
        """
        types = tuple(map(type, args))
        plan = self._plans.get(types)
        if plan is None:
            plan = self._plans[types] = self._plan(args)
        data = [pack(value) for pack, value in zip(plan, args, strict=True)]
        grid3, block3 = _checked(grid, block)
        if not 0 <= shared_mem <= self._most_shared_bytes:
            raise CUDADriverError(1)
        queue_of(stream).submit(Launch(self._program, grid3, block3, data, shared_mem))

    def _plan(self, args: Sequence[object]) -> tuple[Pack, ...]:
        """How to make bytes of arguments of these types."""
        parameters = self._program.kernel.parameters
        if len(args) != len(parameters):
            raise TypeError(f"kernel {self._program.name} takes {len(parameters)} arguments, got {len(args)}")
        return tuple(self._pack(position, value) for position, value in enumerate(args))

    def _pack(self, position: int, value: object) -> Pack:
        if (fixed := _FIXED.get(type(value))) is not None:
            pack, category = fixed
            self._match(position, value, pack(value), category)
            return pack
        by_value = functools.partial(self._by_value, position)
        by_value(value)
        return by_value

    def _by_value(self, position: int, value: object) -> bytes:
        if not isinstance(value, (np.ndarray, np.generic)):
            raise TypeError(f"Unsupported type {type(value)}")
        if value.size != 1:
            raise TypeError(
                f"a numpy array of shape {value.shape} is no kernel argument: only one of size 1 goes by value; "
                f"hand over a cupy.ndarray for a pointer"
            )
        content = value.tobytes()
        self._match(position, value, content, _KINDS.get(value.dtype.kind, value.dtype.name))
        return content

    def _match(self, position: int, value: object, content: bytes, category: str) -> None:
        parameter = self._program.kernel.parameters[position]
        if len(content) != parameter.size or category not in _ACCEPTED[parameter.kind]:
            raise TypeError(
                f"argument {position} of kernel {self._program.name} must be a {parameter.kind} of "
                f"{parameter.size} bytes, got {value!r}: a {category} of {len(content)} bytes"
            )


@functools.cache
def _checked(grid: tuple[int, ...], block: tuple[int, ...]) -> tuple[Sizes, Sizes]:
    """Three sizes each, at least 1. Raises: CUDADriverError for sizes that no GPU has."""
    x, y, z = wide = _three(block)
    if x * y * z > MOST_THREADS or z > 64:
        raise CUDADriverError(1)
    return _three(grid), wide


def _three(sizes: tuple[int, ...]) -> Sizes:
    x, y, z = (max(1, size) for size in (*sizes, 1, 1)[:3])
    if x >= 1 << 31 or y > 65535 or z > 65535:
        raise CUDADriverError(1)
    return x, y, z


def _integer(value: int) -> bytes:
    if -(1 << 63) <= value < 1 << 63:
        return _long(value)
    if 0 < value < 1 << 64:
        return _word(value)
    raise OverflowError(f"{value} does not go into 64 bits")


_FIXED: dict[type, tuple[Pack, str]] = {
    int: (_integer, "integer"),
    float: (_double, "float"),
    bool: (lambda value: b"\x01" if value else b"\x00", "integer"),
    type(None): (lambda value: bytes(8), "pointer"),
    ndarray: (lambda value: _word(value.data.ptr), "pointer"),
    MemoryPointer: (lambda value: _word(value.ptr), "pointer"),
}
