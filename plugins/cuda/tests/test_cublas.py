"""Calls of cuBLAS: which queue, which arithmetic, how many matrices, and what is said when it refuses."""

from __future__ import annotations

from typing import Any

import cuda.pathfinder
import cupy
import numpy as np
import pytest

from turret.spi import BackendUnavailable, Unsupported
from turret_cuda import cublas
from turret_cuda.arrays import FLOAT32
from turret_cuda.cublas import Blas, Operand
from turret_cuda.place import Place
from turret_cuda.storage import CudaStorage

ONE = Operand(4096, 1)


class Recorded:
    """Stands where the library is, and writes down what it is asked for."""

    def __init__(self, status: int = 0) -> None:
        self.calls: list[tuple[str, tuple[Any, ...]]] = []
        self._status = status

    def __getattr__(self, name: str) -> Any:
        def call(*arguments: Any) -> int:
            self.calls.append((name, arguments))
            return self._status if "Gemm" in name else 0

        return call


def recording(monkeypatch: pytest.MonkeyPatch, status: int = 0) -> tuple[Recorded, Blas]:
    found = Recorded(status)
    monkeypatch.setattr(cublas, "library", lambda: found)
    made = Blas("cuda:emulated", cupy.cuda.MemoryPool(), cupy.cuda.Stream(non_blocking=True))
    found.calls.clear()
    return found, made


def test_a_library_that_is_missing_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise cuda.pathfinder.DynamicLibNotFoundError(f"no {name}")

    monkeypatch.setattr(cuda.pathfinder, "load_nvidia_dynamic_lib", missing)
    cublas.library.cache_clear()
    try:
        with pytest.raises(BackendUnavailable, match=r"pip install 'core\[cuda\]'"):
            cublas.library()
    finally:
        cublas.library.cache_clear()


def test_a_handle_has_memory_of_its_own_on_every_queue(monkeypatch: pytest.MonkeyPatch) -> None:
    found, blas = recording(monkeypatch)
    blas.use(77)
    (first, (_, stream)), (second, (_, memory, size)) = found.calls
    assert (first, stream, second) == ("cublasSetStream_v2", 77, "cublasSetWorkspace_v2")
    assert memory % 256 == 0
    assert size == cublas.WORKSPACE_BYTES


def test_a_refused_product_names_its_status(monkeypatch: pytest.MonkeyPatch) -> None:
    _, blas = recording(monkeypatch, status=15)
    with pytest.raises(BackendUnavailable, match=r"status 15.*turret doctor"):
        blas.strided(FLOAT32, (2, 1, 1, 1), ONE, ONE, ONE)


@pytest.mark.parametrize("sizes", [(1, 2**31, 1, 1), (1, 1, 2**31, 1), (1, 1, 1, 2**31)])
def test_sizes_beyond_32_bits_are_refused_before_the_call(
    monkeypatch: pytest.MonkeyPatch, sizes: tuple[int, int, int, int]
) -> None:
    found, blas = recording(monkeypatch)
    with pytest.raises(Unsupported, match="split it"):
        blas.strided(FLOAT32, sizes, ONE, ONE, ONE)
    with pytest.raises(Unsupported, match="split it"):
        blas.strided(FLOAT32, (1, 1, 1, 1), Operand(4096, 2**31), ONE, ONE)
    assert not found.calls


def test_many_matrices_are_several_calls_one_after_another(monkeypatch: pytest.MonkeyPatch) -> None:
    found, blas = recording(monkeypatch)
    count = 2 * cublas.MOST_MATRICES + 5
    a, b, c = Operand(0, 1, 3), Operand(2**40, 1, 0), Operand(2**41, 1, 1)
    blas.strided(FLOAT32, (count, 1, 1, 1), a, b, c)
    blas.pointers(FLOAT32, (count, 1, 1, 1), a, b, c, tf32=True)
    strided, pointed = found.calls[:3], found.calls[3:]
    assert [call[1][-3] for call in found.calls] == [cublas.MOST_MATRICES, cublas.MOST_MATRICES, 5] * 2
    assert [call[1][11] for call in strided] == [each * cublas.MOST_MATRICES * 3 * 4 for each in range(3)]
    assert {call[1][7] for call in strided} == {2**40}
    assert [call[1][10] for call in pointed] == [each * cublas.MOST_MATRICES * 8 for each in range(3)]


@pytest.mark.parametrize(
    ("asked", "allowed", "compute"),
    [("1", True, cublas.IN_TF32), ("1", False, cublas.IN_FLOAT32), ("0", True, cublas.IN_FLOAT32)],
)
def test_tf32_is_used_where_asked_for_and_allowed(
    monkeypatch: pytest.MonkeyPatch, asked: str, allowed: bool, compute: int
) -> None:
    monkeypatch.setenv("CUPY_TF32", asked)
    found, blas = recording(monkeypatch)
    blas.pointers(FLOAT32, (3, 1, 1, 1), ONE, ONE, ONE, tf32=allowed)
    assert found.calls[0][1][-2] == compute


@pytest.mark.parametrize(("word", "asked"), [("1", True), ("2", True), ("0", False), ("", False), ("yes", False)])
def test_cupys_own_switch_is_read_as_cupy_reads_it(monkeypatch: pytest.MonkeyPatch, word: str, asked: bool) -> None:
    monkeypatch.setenv("CUPY_TF32", word)
    assert cublas.tf32_was_asked_for() is asked


def test_matrices_are_found_by_addresses_on_the_device(place: Place) -> None:
    storage, draw = CudaStorage(place), np.random.default_rng(1)
    a, b = draw.standard_normal((3, 4, 5)), draw.standard_normal((3, 6, 5))
    on_device = storage.from_host(a), storage.from_host(b), storage.full((3, 4, 6), 0.0, dtype="float64")
    order = 2, 0, 1
    tables = [
        storage.from_host(np.array([x.data.ptr + at * x.nbytes // 3 for at in order], np.int64)) for x in on_device
    ]
    rows = (5, False), (5, True), (6, False)
    operands = [Operand(table.data.ptr, row, transposed=flag) for table, (row, flag) in zip(tables, rows, strict=True)]
    place.multiply(
        lambda blas: blas.pointers(on_device[0].dtype, (3, 4, 6, 5), *operands, tf32=True), *on_device, *tables
    )
    assert np.allclose(storage.to_host(on_device[2]), a @ b.transpose((0, 2, 1)), rtol=1e-13, atol=1e-13)


@pytest.mark.parametrize("batch", [1, 3])
def test_a_product_is_added_where_that_is_asked(place: Place, batch: int) -> None:
    storage, draw = CudaStorage(place), np.random.default_rng(2)
    a, b, c = (draw.standard_normal((batch, *shape)) for shape in ((4, 5), (5, 6), (4, 6)))
    x, y, z = (storage.from_host(each) for each in (a, b, c))
    left, right, result = Operand(x.data.ptr, 5, 20), Operand(y.data.ptr, 6, 30), Operand(z.data.ptr, 6, 24)
    place.multiply(lambda blas: blas.strided(x.dtype, (batch, 4, 6, 5), left, right, result, add=True), x, y, z)
    assert np.allclose(storage.to_host(z), c + a @ b, rtol=1e-13, atol=1e-13)
