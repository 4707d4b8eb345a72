"""cuBLAS by its C interface: CuPy's own refuses every call while a stream is captured.

Source: NVIDIA, cuBLAS library, sections 2.1.5 (graphs), 2.8 (extensions).
"""

from __future__ import annotations

import ctypes
import os
from ctypes import c_int, c_longlong, c_size_t, c_void_p
from functools import cache
from typing import Any, NamedTuple

from turret.spi import BackendUnavailable, Unsupported

from .arrays import FLOAT64, NATIVE, Native

# cudaDataType, cublasOperation_t and cublasComputeType_t.
TYPES: dict[Native, int] = {NATIVE["float32"]: 0, FLOAT64: 1, NATIVE["float16"]: 2, NATIVE["bfloat16"]: 14}
AS_IT_LIES, TRANSPOSED = 0, 1
IN_FLOAT32, IN_FLOAT64, IN_TF32 = 68, 70, 77
DEFAULT_ALGORITHM = -1
# Halves are added up in float32 also where a product is cut along its depth.
NO_REDUCED_SUMS = 16

# NVIDIA's advice for compute capability 9.0; a handle without memory of its own would allocate in the middle of a
# capture. Products in one queue never use it at the same time.
WORKSPACE_BYTES = 32 * 2**20
# Of one call: kernels count matrices along an axis of the grid that ends at 65,535. A power of two keeps alignment.
MOST_MATRICES = 32_768
ALIGNED = 16  # bytes: what addresses on the device must be multiples of where products in TF32 take them

_SIGNATURES: dict[str, tuple[Any, ...]] = {
    "cublasCreate_v2": (c_void_p,),
    "cublasSetStream_v2": (c_void_p, c_void_p),
    "cublasSetWorkspace_v2": (c_void_p, c_void_p, c_size_t),
    "cublasSetMathMode": (c_void_p, c_int),
    "cublasGemmEx": (
        *(c_void_p, c_int, c_int, c_int, c_int, c_int, c_void_p),
        *(c_void_p, c_int, c_int) * 2,
        *(c_void_p, c_void_p, c_int, c_int),
        *(c_int, c_int),
    ),
    "cublasGemmStridedBatchedEx": (
        *(c_void_p, c_int, c_int, c_int, c_int, c_int, c_void_p),
        *(c_void_p, c_int, c_int, c_longlong) * 2,
        *(c_void_p, c_void_p, c_int, c_int, c_longlong),
        *(c_int, c_int, c_int),
    ),
    "cublasGemmBatchedEx": (
        *(c_void_p, c_int, c_int, c_int, c_int, c_int, c_void_p),
        *(c_void_p, c_int, c_int) * 2,
        *(c_void_p, c_void_p, c_int, c_int),
        *(c_int, c_int, c_int),
    ),
}


@cache
def library() -> ctypes.CDLL:
    """The shared library with the types of its functions stated. Raises: BackendUnavailable."""
    from cuda.pathfinder import DynamicLibNotFoundError, load_nvidia_dynamic_lib

    try:
        found = ctypes.CDLL(load_nvidia_dynamic_lib("cublas").abs_path)
    except (DynamicLibNotFoundError, OSError) as error:
        raise BackendUnavailable(f"cuBLAS does not load ({error}); run: pip install 'core[cuda]'") from error
    for name, arguments in _SIGNATURES.items():
        function = getattr(found, name)  # found[name] would be another object at every call
        function.argtypes, function.restype = arguments, c_int
    return found


def tf32_was_asked_for() -> bool:
    """Whether CuPy's own switch allows TF32 in products of float32."""
    word = os.environ.get("CUPY_TF32", "0")
    return word.isdigit() and int(word) > 0


class Operand(NamedTuple):
    """Matrices in C order: the address of the first, elements from row to row and from matrix to matrix.

    `transposed` says that the product takes them with rows and columns exchanged.
    """

    address: int
    row: int
    matrix: int = 0
    transposed: bool = False


class Blas:
    """One handle with memory of its own. It is not thread-safe: `use` and the calls after it belong together."""

    def __init__(self, spec: str, pool: Any, stream: Any) -> None:
        self._spec, self._library = spec, library()
        self._handle = c_void_p()
        self._compute = {each: IN_FLOAT64 if each == FLOAT64 else IN_FLOAT32 for each in TYPES}
        if tf32_was_asked_for():
            self._compute[NATIVE["float32"]] = IN_TF32
        self._scalars = {
            (code, value): (ctypes.c_double if code == IN_FLOAT64 else ctypes.c_float)(value)
            for code in (IN_FLOAT32, IN_FLOAT64, IN_TF32)
            for value in (0.0, 1.0)
        }
        with stream:
            self._workspace = pool.malloc(WORKSPACE_BYTES)
        self._check("cublasCreate_v2", self._library.cublasCreate_v2(ctypes.byref(self._handle)))
        self._check("cublasSetMathMode", self._library.cublasSetMathMode(self._handle, NO_REDUCED_SUMS))

    def use(self, stream: int) -> None:
        """The queue that the next products go to."""
        self._check("cublasSetStream", self._library.cublasSetStream_v2(self._handle, stream))
        # choosing a queue takes the memory away again
        given = self._library.cublasSetWorkspace_v2(self._handle, self._workspace.ptr, WORKSPACE_BYTES)
        self._check("cublasSetWorkspace", given)

    def strided(
        self, dtype: Native, sizes: tuple[int, int, int, int], a: Operand, b: Operand, c: Operand, *, add: bool = False
    ) -> None:
        """Writes op(a) op(b) to c, or adds it with `add`; `op` exchanges rows and columns where the operand says so.

        sizes: matrices, rows and columns of c, depth; all of them positive. Raises: Unsupported, BackendUnavailable.
        """
        width, most = dtype.itemsize, MOST_MATRICES
        for start in range(0, sizes[0], most):
            part = min(sizes[0] - start, most), *sizes[1:]
            here = (each._replace(address=each.address + start * each.matrix * width) for each in (a, b, c))
            self._strided(dtype, part, *here, add=add)

    def pointers(
        self, dtype: Native, sizes: tuple[int, int, int, int], a: Operand, b: Operand, c: Operand, *, tf32: bool
    ) -> None:
        """Writes op(a) op(b) to c, each operand given by the address of an array of addresses on the device.

        TF32 takes part only with `tf32`, and then all of those addresses have to be multiples of ALIGNED.
        """
        for start in range(0, sizes[0], MOST_MATRICES):
            part = min(sizes[0] - start, MOST_MATRICES), *sizes[1:]
            here = (each._replace(address=each.address + start * 8) for each in (a, b, c))
            self._pointers(dtype, part, *here, tf32=tf32)

    def _strided(
        self, dtype: Native, sizes: tuple[int, int, int, int], a: Operand, b: Operand, c: Operand, *, add: bool
    ) -> None:
        batch, m, n, k = sizes
        kind, compute = TYPES[dtype], self._compute[dtype]
        alpha, beta = self._scalars[compute, 1.0], self._scalars[compute, 1.0 if add else 0.0]
        _in_range(m, n, k, a.row, b.row, c.row)
        # in C order c is, for a library that counts columns first, the transposed product of the transposed operands
        turned = (self._handle, _operation(b), _operation(a), n, m, k, ctypes.byref(alpha))
        if batch == 1:
            status = self._library.cublasGemmEx(
                *(*turned, b.address, kind, b.row, a.address, kind, a.row),
                *(ctypes.byref(beta), c.address, kind, c.row, compute, DEFAULT_ALGORITHM),
            )
        else:
            status = self._library.cublasGemmStridedBatchedEx(
                *(*turned, b.address, kind, b.row, b.matrix, a.address, kind, a.row, a.matrix),
                *(ctypes.byref(beta), c.address, kind, c.row, c.matrix, batch, compute, DEFAULT_ALGORITHM),
            )
        self._check("a product", status)

    def _pointers(
        self, dtype: Native, sizes: tuple[int, int, int, int], a: Operand, b: Operand, c: Operand, *, tf32: bool
    ) -> None:
        batch, m, n, k = sizes
        kind, compute = TYPES[dtype], self._compute[dtype]
        if compute == IN_TF32 and not tf32:
            compute = IN_FLOAT32
        alpha, beta = self._scalars[compute, 1.0], self._scalars[compute, 0.0]
        _in_range(m, n, k, a.row, b.row, c.row)
        status = self._library.cublasGemmBatchedEx(
            *(self._handle, _operation(b), _operation(a), n, m, k, ctypes.byref(alpha)),
            *(b.address, kind, b.row, a.address, kind, a.row),
            *(ctypes.byref(beta), c.address, kind, c.row, batch, compute, DEFAULT_ALGORITHM),
        )
        self._check("a product of every head", status)

    def _check(self, what: str, status: int) -> None:
        if status:
            raise BackendUnavailable(f"{self._spec}: {what} answers with status {status}; look at `turret doctor`")


def _operation(operand: Operand) -> int:
    return TRANSPOSED if operand.transposed else AS_IT_LIES


def _in_range(*sizes: int) -> None:
    if max(sizes) >= 2**31:
        raise Unsupported(f"a product with {max(sizes)} rows, columns or terms; cuBLAS takes fewer than 2^31: split it")
