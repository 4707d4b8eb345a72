"""The stand-in for cuBLAS: built once, and joined to the queues, where its products run."""

from __future__ import annotations

import ctypes
import functools
import hashlib
import os
import subprocess
from pathlib import Path

from engine.compiler import folder

from .faults import CUDARuntimeError
from .heap import Allocation, heap
from .machine import machine
from .queues import inside

_SOURCE = Path(__file__).with_name("cublas.cpp")
_FLAGS = ("-std=c++17", "-O3", "-march=native", "-shared", "-fPIC")
_BYTES = {0: 4, 1: 8, 2: 2, 14: 2}


class _Call(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_uint64) for name in ("a", "b", "c")),
        *((name, ctypes.c_int64) for name in ("stride_a", "stride_b", "stride_c")),
        *((name, ctypes.c_double) for name in ("alpha", "beta")),
        ("pointers", ctypes.c_int64),
        *((name, ctypes.c_int32) for name in ("transpose_a", "transpose_b", "m", "n", "k", "lda", "ldb", "ldc")),
        *((name, ctypes.c_int32) for name in ("batch", "type", "type_c", "compute")),
    )


class _Product:
    """One call, with its numbers as they were; operands are looked for when it runs."""

    __slots__ = ("_call", "_library")

    def __init__(self, library: ctypes.CDLL, call: _Call) -> None:
        self._library = library
        self._call = call

    def run(self) -> None:
        call = self._call
        of_a = (call.k, call.m) if call.transpose_a else (call.m, call.k)
        of_b = (call.n, call.k) if call.transpose_b else (call.k, call.n)
        self._find(call.a, call.stride_a, *of_a, call.lda, _BYTES[call.type])
        self._find(call.b, call.stride_b, *of_b, call.ldb, _BYTES[call.type])
        results = self._find(call.c, call.stride_c, call.m, call.n, call.ldc, _BYTES[call.type_c])
        self._library.emulator_run(ctypes.byref(call))
        for allocation in results:
            heap.examine(allocation, "a product of cuBLAS")

    def _find(self, address: int, stride: int, rows: int, columns: int, leading: int, item: int) -> list[Allocation]:
        """The allocations that hold an operand. Raises: CUDARuntimeError when part of it lies elsewhere."""
        if not rows or not columns:
            return []
        nbytes = ((columns - 1) * leading + rows) * item
        batch = self._call.batch
        if self._call.pointers:
            inside(address, 8 * batch, "a product of cuBLAS")
            addresses = (ctypes.c_uint64 * batch).from_address(address)[:]
            return [inside(each, nbytes, "a product of cuBLAS") for each in addresses]
        first = min(0, (batch - 1) * stride * item)
        whole = nbytes + abs((batch - 1) * stride * item)
        return [inside(address + first, whole, "a product of cuBLAS")]


def _build() -> Path:
    """The library for this source, from a folder of this user's where every process finds it."""
    key = hashlib.sha256(_SOURCE.read_bytes() + repr(_FLAGS).encode()).hexdigest()[:20]
    built = folder() / f"libcublas-{key}.so"
    if not built.exists():
        making = folder() / f"{built.name}.{os.getpid()}"
        subprocess.run(["g++", *_FLAGS, "-o", making, _SOURCE], check=True)
        making.replace(built)
    return built


@functools.cache
def library() -> Path:
    """The path of the stand-in, which is built, loaded and joined to the queues."""
    path = _build()
    loaded = ctypes.CDLL(str(path))

    def submit(call: int, stream: int | None) -> int:
        queue = machine.queues.get(stream or 0)
        if queue is None:
            return 1
        try:
            queue.submit(_Product(loaded, _Call.from_buffer_copy(ctypes.string_at(call, ctypes.sizeof(_Call)))))
        except CUDARuntimeError:
            return 1
        return 0

    callback = _Submit(submit)
    _kept.append(callback)
    loaded.emulator_connect(callback)
    return path


_Submit = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_uint64)
# C holds the function by its address alone.
_kept: list[object] = []
