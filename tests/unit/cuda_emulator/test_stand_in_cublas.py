from __future__ import annotations

import ctypes
import time
from ctypes import byref, c_double, c_float, c_int, c_void_p
from typing import Any

import cupy
import ml_dtypes
import numpy as np
import pytest
from cuda.pathfinder import DynamicLibNotFoundError, load_nvidia_dynamic_lib
from cupy.cuda import MemoryPool, Stream
from cupy.cuda.runtime import CUDARuntimeError

pytestmark = pytest.mark.usefixtures("device")

F32, F64, F16, BF16 = (np.dtype(each) for each in (np.float32, np.float64, np.float16, ml_dtypes.bfloat16))
CODES = {F32: 0, F64: 1, F16: 2, BF16: 14}
SUM_32, SUM_64, SUM_TF32 = 68, 70, 77


def long(value: int) -> ctypes.c_longlong:
    return ctypes.c_longlong(value)


class Cublas:
    """The library as a program opens it, with arrays in NumPy's order: C = A @ B is asked for as C^T = B^T @ A^T."""

    def __init__(self, pool: MemoryPool, stream: Stream) -> None:
        path = load_nvidia_dynamic_lib("cublas").abs_path
        assert path is not None
        self.call = ctypes.CDLL(path)
        self.pool = pool
        self.stream = stream
        self.handle = c_void_p()
        assert self.call.cublasCreate_v2(byref(self.handle)) == 0
        assert self.call.cublasSetStream_v2(self.handle, c_void_p(stream.ptr)) == 0

    def array(self, values: Any) -> cupy.ndarray:
        host = np.ascontiguousarray(values)
        made = cupy.ndarray(host.shape, host.dtype, self.pool.malloc(host.nbytes))
        made.data.copy_from_host_async(host.ctypes.data, host.nbytes, self.stream)
        return made

    def values(self, array: cupy.ndarray) -> Any:
        out = np.empty(array.shape, array.dtype)
        array.data.copy_to_host_async(out.ctypes.data, out.nbytes, self.stream)
        self.stream.synchronize()
        return out

    def multiply(
        self,
        a: cupy.ndarray,
        b: cupy.ndarray,
        c: cupy.ndarray,
        *,
        turn_a: bool = False,
        turn_b: bool = False,
        compute: int = SUM_32,
        alpha: float = 1,
        beta: float = 0,
    ) -> int:
        """Queues c = alpha * a @ b + beta * c for row-major matrices, or batches of them, as the library sees them."""
        m, n = c.shape[-2:]
        k = a.shape[-2] if turn_a else a.shape[-1]
        kind = c_double if compute == SUM_64 else c_float
        batch = c.shape[0] if c.ndim == 3 else 1
        stride = [long(each.shape[-1] * each.shape[-2]) for each in (b, a, c)]
        return int(
            self.call.cublasGemmStridedBatchedEx(
                *(self.handle, int(turn_b), int(turn_a), n, m, k, byref(kind(alpha))),
                *(c_void_p(b.data.ptr), CODES[b.dtype], max(1, b.shape[-1]), stride[0]),
                *(c_void_p(a.data.ptr), CODES[a.dtype], max(1, a.shape[-1]), stride[1]),
                *(byref(kind(beta)), c_void_p(c.data.ptr), CODES[c.dtype], c.shape[-1], stride[2]),
                *(batch, compute, -1),
            )
        )


@pytest.fixture
def blas(pool: MemoryPool, stream: Stream) -> Cublas:
    return Cublas(pool, stream)


def tolerance(dtype: np.dtype[Any]) -> float:
    return {F64: 1e-13, F32: 2e-6, F16: 1e-3, BF16: 8e-3}[dtype]


@pytest.mark.parametrize("shape", [(1, 1, 1), (3, 5, 7), (64, 48, 33), (17, 130, 19), (1, 200, 16), (40, 1, 40)])
@pytest.mark.parametrize("turns", [(False, False), (True, False), (False, True), (True, True)])
@pytest.mark.parametrize(
    ("dtype", "out", "compute"), [(F32, F32, 68), (F64, F64, 70), (F16, F32, 68), (BF16, BF16, 68)]
)
def test_products_match_numpy(
    blas: Cublas,
    shape: tuple[int, int, int],
    turns: tuple[bool, bool],
    dtype: np.dtype[Any],
    out: np.dtype[Any],
    compute: int,
) -> None:
    m, k, n = shape
    rng = np.random.default_rng(m * k + n)
    a, b = rng.standard_normal((m, k)).astype(dtype), rng.standard_normal((k, n)).astype(dtype)
    c = blas.array(rng.standard_normal((m, n)).astype(out))
    before = blas.values(c).astype(np.float64)
    first, second = blas.array(a.T if turns[0] else a), blas.array(b.T if turns[1] else b)
    status = blas.multiply(first, second, c, turn_a=turns[0], turn_b=turns[1], compute=compute, alpha=0.5, beta=-2)
    assert status == 0
    wide_a, wide_b = a.astype(np.float64), b.astype(np.float64)
    want = 0.5 * wide_a @ wide_b - 2 * before
    scale = 0.5 * np.abs(wide_a) @ np.abs(wide_b) + 2 * np.abs(before)
    assert (np.abs(blas.values(c).astype(np.float64) - want) <= tolerance(out) * scale).all()


def test_a_plain_call_computes_column_major(blas: Cublas) -> None:
    # Columns one after another: A = [[1, 3], [2, 4]], B = [[5], [6]], so C = [[23], [34]].
    a, b = blas.array(np.array([1, 2, 3, 4], np.float32)), blas.array(np.array([5, 6], np.float32))
    c = blas.array(np.zeros(2, np.float32))
    a_, b_, c_ = (c_void_p(each.data.ptr) for each in (a, b, c))
    one, zero = c_float(1), c_float(0)
    call = blas.call.cublasGemmEx
    assert call(blas.handle, 0, 0, 2, 1, 2, byref(one), a_, 0, 2, b_, 0, 2, byref(zero), c_, 0, 2, 68, -1) == 0
    one.value = 100
    assert blas.values(c).tolist() == [23, 34]


def test_beta_of_zero_does_not_read_the_result(blas: Cublas) -> None:
    a, c = blas.array(np.ones((3, 3), np.float32)), blas.array(np.full((3, 3), np.nan, np.float32))
    blas.multiply(a, a, c)
    assert (blas.values(c) == 3).all()


def test_no_steps_of_the_sum_leave_the_scaled_result(blas: Cublas) -> None:
    c = blas.array(np.ones((2, 2), np.float32))
    nothing = cupy.ndarray((2, 0), F32, blas.pool.malloc(0))
    assert blas.multiply(nothing, nothing, c, turn_b=True, beta=3) == 0
    assert (blas.values(c) == 3).all()


def test_batches_by_stride_and_by_table_agree_with_numpy(blas: Cublas) -> None:
    rng = np.random.default_rng(5)
    host_a, host_b = rng.standard_normal((3, 4, 6)), rng.standard_normal((3, 6, 5))
    a, b, c = blas.array(host_a), blas.array(host_b), blas.array(np.zeros((3, 4, 5)))
    assert blas.multiply(a, b, c, compute=SUM_64) == 0
    np.testing.assert_allclose(blas.values(c), host_a @ host_b, rtol=1e-12)
    picked = [2, 0, 2]
    tables = [
        blas.array(np.array([each[i].data.ptr for i in order], np.uint64))
        for each, order in ((b, picked), (a, picked), (c, [0, 1, 2]))
    ]
    b_, a_, c_ = (c_void_p(each.data.ptr) for each in tables)
    one, zero = c_double(1), c_double(0)
    call = blas.call.cublasGemmBatchedEx
    status = call(
        blas.handle, 0, 0, 5, 4, 6, byref(one), b_, 1, 5, a_, 1, 6, byref(zero), c_, 1, 5, 3, SUM_64, -1
    )  # fmt: skip
    assert status == 0
    np.testing.assert_allclose(blas.values(c), (host_a @ host_b)[picked], rtol=1e-12)


def test_tf32_keeps_ten_bits_of_the_operands(blas: Cublas) -> None:
    a = blas.array(np.array([[1 + 2.0**-10, 1 + 2.0**-12]], np.float32))
    b = blas.array(np.eye(2, dtype=np.float32))
    c = blas.array(np.zeros((1, 2), np.float32))
    blas.multiply(a, b, c, compute=SUM_TF32)
    assert blas.values(c).tolist() == [[1 + 2.0**-10, 1]]
    blas.multiply(a, b, c)
    assert blas.values(c).tolist() == [[1 + 2.0**-10, 1 + 2.0**-12]]


@pytest.mark.parametrize("dtype", [F16, BF16])
def test_halves_are_rounded_as_numpy_rounds_them(blas: Cublas, dtype: np.dtype[Any]) -> None:
    every = np.arange(1 << 16, dtype=np.uint16).view(dtype)
    finite = every[np.isfinite(every.astype(np.float32))].reshape(1, -1)
    c = blas.array(np.zeros(finite.shape, F32))
    blas.multiply(blas.array(np.ones((1, 1), dtype)), blas.array(finite), c)
    assert (blas.values(c) == finite.astype(np.float32)).all()
    # Three quarters of a half lie midway between two others time and again.
    for factor in (np.float32(1 / 3), np.float32(0.75)):
        c = blas.array(np.zeros(finite.shape, dtype))
        blas.multiply(blas.array(np.ones((1, 1), dtype)), blas.array(finite), c, alpha=float(factor))
        want = (finite.astype(np.float32) * factor).astype(dtype)
        assert (blas.values(c).astype(np.float32) == want.astype(np.float32)).all()


def test_what_the_library_cannot_do_is_an_answer(blas: Cublas) -> None:
    a, half = blas.array(np.ones((4, 4), F32)), blas.array(np.ones((4, 4), F16))
    assert blas.multiply(a, a, a, compute=SUM_64) == 15
    assert blas.multiply(half, a, a) == 15
    assert blas.multiply(half, half, half, compute=SUM_TF32) == 15
    p, one = c_void_p(a.data.ptr), c_float(1)

    def plain(op: int, m: int, lda: int, ldc: int, alpha: object) -> int:
        values = (m, 4, 4, alpha, p, 0, lda, p, 0, 4, byref(one), p, 0, ldc, 68, -1)
        return int(blas.call.cublasGemmEx(blas.handle, op, 0, *values))

    assert plain(0, 4, 4, 4, byref(one)) == 0
    wrong = [(0, -1, 4, 4), (0, 4, 3, 4), (1, 5, 3, 5), (0, 4, 4, 3), (3, 4, 4, 4)]
    assert [plain(*each, byref(one)) for each in wrong] == [7] * 5
    assert plain(0, 4, 4, 4, None) == 7
    assert blas.call.cublasGemmEx(None, 0, 0, 1, 1, 1, None, p, 0, 1, p, 0, 1, None, p, 0, 1, 68, -1) == 1


def test_a_handle_remembers_its_stream_and_says_its_version(blas: Cublas) -> None:
    found, version = c_void_p(), c_int()
    assert blas.call.cublasGetStream_v2(blas.handle, byref(found)) == 0 and found.value == blas.stream.ptr
    assert blas.call.cublasGetVersion_v2(blas.handle, byref(version)) == 0 and version.value // 10000 == 13
    assert blas.call.cublasSetMathMode(blas.handle, 0) == 0
    space = blas.pool.malloc(4096)
    assert blas.call.cublasSetWorkspace_v2(blas.handle, c_void_p(space.ptr), ctypes.c_size_t(4096)) == 0
    assert blas.call.cublasSetWorkspace_v2(blas.handle, c_void_p(space.ptr + 16), ctypes.c_size_t(64)) == 7
    assert blas.call.cublasDestroy_v2(blas.handle) == 0


def test_a_product_waits_in_its_stream_and_can_be_captured(blas: Cublas) -> None:
    a = blas.array(np.full((2, 2), 2, np.float32))
    c = blas.array(np.zeros((2, 2), np.float32))
    blas.stream.begin_capture()
    assert blas.multiply(a, a, c, beta=1) == 0
    graph = blas.stream.end_capture()
    assert (blas.values(c) == 0).all()
    graph.launch(blas.stream)
    graph.launch(blas.stream)
    assert (blas.values(c) == 16).all()


def test_an_operand_beyond_its_memory_is_an_illegal_access(blas: Cublas) -> None:
    a, c = blas.array(np.ones((4, 4), np.float32)), blas.array(np.zeros((5, 4), np.float32))
    assert blas.multiply(cupy.ndarray((5, 4), F32, a.data), a, c) == 0
    with pytest.raises(CUDARuntimeError, match=r"cudaErrorIllegalAddress: .*a product of cuBLAS reaches"):
        blas.stream.synchronize()
    assert blas.multiply(a, a, c) == 13


def test_a_product_of_256_is_fast_enough_for_a_suite(blas: Cublas) -> None:
    a = blas.array(np.ones((256, 256), np.float32))
    c = blas.array(np.zeros((256, 256), np.float32))
    fastest = float("inf")
    for _ in range(5):
        blas.multiply(a, a, c)
        start = time.perf_counter()
        blas.stream.synchronize()
        fastest = min(fastest, time.perf_counter() - start)
    assert fastest < 0.1


def test_no_other_library_is_found() -> None:
    with pytest.raises(DynamicLibNotFoundError, match="cublas and no 'cudnn'"):
        load_nvidia_dynamic_lib("cudnn")
