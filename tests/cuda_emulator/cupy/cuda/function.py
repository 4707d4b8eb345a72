"""Calls of kernels: arguments become the bytes that the kernel takes."""

from __future__ import annotations

import functools
import struct
from collections.abc import Callable, Sequence

import numpy as np
from cupy_backends.cuda.api.driver import CUDADriverError
from cupy_backends.emulated.launch import Launch, Sizes
from engine import Kernel

from .._array import ndarray
from .memory import MemoryPointer
from .stream import Stream, queue_of

MOST_THREADS = 1024
_word = struct.Struct("<Q").pack
_long = struct.Struct("<q").pack
_double = struct.Struct("<d").pack
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
        self._name = name
        self._kernel = kernel
        self._most_shared_bytes = kernel.max_shared_bytes - kernel.static_shared_bytes
        self._parameters = [(each.size, each.kind, _ACCEPTED[each.kind]) for each in kernel.parameters]

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
        if len(args) != len(self._parameters):
            raise TypeError(f"kernel {self._name} takes {len(self._parameters)} arguments, got {len(args)}")
        data: list[bytes] = []
        pointers: list[bytes] = []
        for value, (size, kind, accepted) in zip(args, self._parameters, strict=True):
            pack = _PACKERS.get(type(value), _by_value)
            content, category = pack(value)
            if len(content) != size or category not in accepted:
                raise TypeError(
                    f"argument {len(data)} of kernel {self._name} must be a {kind} of {size} bytes, "
                    f"got {value!r}: a {category} of {len(content)} bytes"
                )
            if kind == "pointer":
                pointers.append(content)
            elif kind == "struct":
                pointers.extend(content[at : at + 8] for at in range(0, size - 7, 8))
            data.append(content)
        grid3, block3 = _checked(grid, block)
        if not 0 <= shared_mem <= self._most_shared_bytes:
            raise CUDADriverError(1)
        queue_of(stream).submit(Launch(self._name, self._kernel, grid3, block3, data, pointers, shared_mem))


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


def _by_value(value: object) -> tuple[bytes, str]:
    if isinstance(value, np.ndarray):
        if value.size != 1:
            raise TypeError(
                f"a numpy array of shape {value.shape} is no kernel argument: only one of size 1 goes by value; "
                f"hand over a cupy.ndarray for a pointer"
            )
        return value.tobytes(), _KINDS[value.dtype.kind]
    if isinstance(value, np.generic):
        return value.tobytes(), _KINDS[value.dtype.kind]
    raise TypeError(f"Unsupported type {type(value)}")


def _integer(value: int) -> tuple[bytes, str]:
    if -(1 << 63) <= value < 1 << 63:
        return _long(value), "integer"
    if 0 < value < 1 << 64:
        return _word(value), "integer"
    raise OverflowError(f"{value} does not go into 64 bits")


_PACKERS: dict[type, Callable[..., tuple[bytes, str]]] = {
    int: _integer,
    float: lambda value: (_double(value), "float"),
    bool: lambda value: (b"\x01" if value else b"\x00", "integer"),
    type(None): lambda value: (bytes(8), "pointer"),
    ndarray: lambda value: (_word(value.data.ptr), "pointer"),
    MemoryPointer: lambda value: (_word(value.ptr), "pointer"),
}
