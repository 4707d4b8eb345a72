"""Compiled programs and the launching of their kernels."""

from __future__ import annotations

import ctypes
import functools
import os
import struct
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from .compiler import program_library, runtime_library
from .errors import FaultKind, KernelFault

ParameterKind = Literal["pointer", "integer", "float", "struct"]
Order = Literal["forward", "reverse", "random"]
Dimensions = tuple[int, int, int]

_PARAMETER_KINDS: Final[tuple[ParameterKind, ...]] = ("pointer", "integer", "float", "struct")
_FAULT_KINDS: Final[tuple[FaultKind | None, ...]] = (
    None,
    "launch",
    "illegal address",
    "deadlock",
    "divergent barrier",
    "bad lane",
    "trap",
)
_ORDERS: Final[dict[str, int]] = {"forward": 0, "reverse": 1, "random": 2}
_LAUNCH: Final = struct.Struct("@PPQi6Iiiii")
_ALIGNMENT: Final = 64


class _ParameterRecord(ctypes.Structure):
    _fields_ = (("size", ctypes.c_int), ("offset", ctypes.c_int), ("kind", ctypes.c_int))


class _KernelRecord(ctypes.Structure):
    _fields_ = (
        ("name", ctypes.c_char_p),
        ("call", ctypes.c_void_p),
        ("parameters", ctypes.POINTER(_ParameterRecord)),
        ("count", ctypes.c_int),
    )


class _ProgramRecord(ctypes.Structure):
    _fields_ = (("kernels", ctypes.POINTER(_KernelRecord)), ("count", ctypes.c_int))


@functools.cache
def _runtime() -> ctypes.CDLL:
    library = ctypes.CDLL(str(runtime_library()), mode=ctypes.RTLD_GLOBAL)
    library.on_host_launch.argtypes = (ctypes.c_void_p,)
    library.on_host_message.restype = ctypes.c_char_p
    return library


class _Turn:
    """Who may launch: one thread at a time, since a program's registers and shared memory exist once."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        os.register_at_fork(after_in_child=self._renew)

    def _renew(self) -> None:
        self.lock = threading.Lock()


_turn = _Turn()
_compiling = threading.Lock()


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameter:
    """What a kernel takes at one position: `size` bytes, at `offset` among all arguments."""

    size: int
    kind: ParameterKind
    offset: int


class Kernel:
    """A kernel that can be launched from any thread.

    `max_shared_bytes` is what static and dynamic shared memory of a block may be together; a program may raise it, as
    on a device by an attribute of the function.
    """

    def __init__(self, record: _KernelRecord, position: int, program: int) -> None:
        self.name: Final[str] = record.name.decode()
        self.parameters: Final = tuple(
            Parameter(size=found.size, kind=_PARAMETER_KINDS[found.kind], offset=found.offset)
            for found in record.parameters[: record.count]
        )
        self.max_shared_bytes = 48 << 10
        self._sizes = [parameter.size for parameter in self.parameters]
        self._position = position
        self._program = program
        self._frame = struct.Struct(_frame_format(self.parameters))
        self._memory = bytearray(2 * _ALIGNMENT + _LAUNCH.size + self._frame.size + _ALIGNMENT)
        address = ctypes.addressof(ctypes.c_char.from_buffer(self._memory))
        self._launch_at = -address % _ALIGNMENT
        self._frame_at = self._launch_at + (_LAUNCH.size + _ALIGNMENT - 1) // _ALIGNMENT * _ALIGNMENT
        self._launch_address = address + self._launch_at
        self._frame_address = address + self._frame_at
        self._run = _runtime().on_host_launch

    def run(
        self,
        grid: Dimensions,
        block: Dimensions,
        arguments: Sequence[bytes],
        *,
        shared_bytes: int = 0,
        order: Order = "forward",
        seed: int = 0,
        garbage: int = 0xFF,
    ) -> None:
        """Runs every thread of the grid, and comes back when all have ended.

        Args:
            grid: blocks along x, y and z.
            block: threads of a block along x, y and z.
            arguments: the bytes of each parameter, as they lie in memory.
            shared_bytes: dynamic shared memory of a block.
            order: how blocks follow each other, and at every turn the threads of a block that can run on.
            seed: of the random order.
            garbage: the byte that shared memory is full of when a block begins.

        Raises:
            TypeError: another number of arguments or an argument of another size than the kernel's.
            KernelFault: a launch beyond a device's limits, or a thread that did what none may. What the kernel had
                written by then stays written.
        """
        if [len(argument) for argument in arguments] != self._sizes:
            raise TypeError(self._mismatch(arguments))
        self._check_limits(grid, block, shared_bytes)
        if order not in _ORDERS:
            raise ValueError(f"order is one of {', '.join(_ORDERS)}, got {order!r}")
        with _turn.lock:
            memory = self._memory
            _LAUNCH.pack_into(
                memory,
                self._launch_at,
                self._program,
                self._frame_address,
                seed & 0xFFFFFFFFFFFFFFFF,
                self._position,
                *grid,
                *block,
                shared_bytes,
                self.max_shared_bytes,
                _ORDERS[order],
                garbage,
            )
            self._frame.pack_into(memory, self._frame_at, *arguments)
            fault = _FAULT_KINDS[self._run(self._launch_address)]
            message = "" if fault is None else _runtime().on_host_message().decode(errors="replace")
        if fault is not None:
            raise KernelFault(fault, message)

    def _mismatch(self, arguments: Sequence[bytes]) -> str:
        if len(arguments) != len(self._sizes):
            return f"kernel {self.name} takes {len(self._sizes)} arguments, got {len(arguments)}"
        pairs = zip(arguments, self._sizes, strict=True)
        position = next(i for i, (argument, size) in enumerate(pairs) if len(argument) != size)
        parameter = self.parameters[position]
        return (
            f"kernel {self.name}: argument {position} has {len(arguments[position])} bytes, the parameter is "
            f"{parameter.kind} of {parameter.size} bytes"
        )

    def _check_limits(self, grid: Dimensions, block: Dimensions, shared_bytes: int) -> None:
        x, y, z = block
        gx, gy, gz = grid
        if x < 1 or y < 1 or z < 1 or x * y * z > 1024 or z > 64:
            wrong = f"a block of {block} threads: at least 1 along each axis, at most 1024 in all and 64 along z"
        elif gx < 1 or gy < 1 or gz < 1 or gx > 0x7FFFFFFF or gy > 65535 or gz > 65535:
            wrong = (
                f"a grid of {grid} blocks: at least 1 along each axis, at most 2147483647 along x, 65535 along y and z"
            )
        elif shared_bytes < 0 or shared_bytes > self.max_shared_bytes:
            wrong = f"{shared_bytes} bytes of dynamic shared memory: at most {self.max_shared_bytes}"
        else:
            return
        raise KernelFault("launch", f"kernel {self.name}: {wrong}")


@dataclass(frozen=True, slots=True)
class Program:
    """The kernels of one source, by name."""

    kernels: dict[str, Kernel]


def compile_source(code: str, defines: Mapping[str, str] | None = None) -> Program:
    """Compiles a CUDA source that includes nothing, or takes its library from the cache.

    Raises:
        CompileError: with the compiler's output.
    """
    with _compiling:
        _runtime()
        library = ctypes.CDLL(str(program_library(code, defines or {})))
    found = _ProgramRecord.in_dll(library, "on_host_program")
    kernels = [Kernel(found.kernels[i], i, ctypes.addressof(found)) for i in range(found.count)]
    return Program({kernel.name: kernel for kernel in kernels})


def _frame_format(parameters: Sequence[Parameter]) -> str:
    pieces, end = [], 0
    for parameter in parameters:
        pieces.append(f"{parameter.offset - end}x{parameter.size}s")
        end = parameter.offset + parameter.size
    return "=" + "".join(pieces)
