"""Faults as CUDA programs have them, planted one at a time: each is caught, by the case it is listed with."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import cupy
import numpy as np
import pytest

from turret.conformance.execute import Rules, execute
from turret.conformance.results import Status
from turret.conformance.subject import Subject
from turret.conformance.suite import all_cases
from turret.registry.opened import OpenBackend
from turret.spi import BackendUnavailable
from turret_cuda import backend
from turret_cuda.graph import Buffer
from turret_cuda.indexing import CudaIndexing
from turret_cuda.kernels import source
from turret_cuda.place import Place
from turret_cuda.plugin import turret_backends

CASES = {case.id: case for case in all_cases()}
Plant = Callable[[pytest.MonkeyPatch], None]


def kernel(file: str, right: str, wrong: str) -> Plant:
    """Another text in one kernel file, the header included."""

    def plant(monkeypatch: pytest.MonkeyPatch) -> None:
        read = source.text

        def changed(name: str) -> str:
            text = read(name)
            if right in text:
                assert text.count(right) == 1, "the text is there twice; take more of it"
                changes.append(name)
            return text.replace(right, wrong)

        changes: list[str] = []
        monkeypatch.setattr(source, "text", changed)
        source.text(file)
        assert changes, f"{file} has changed; change the fault with it"

    return plant


def on_a_queue_of_its_own(place: Any, x: Any, address: int) -> None:
    """A copy to the host that nothing told to wait for the kernels."""
    other = cupy.cuda.Stream(non_blocking=True)
    x.data.copy_to_host_async(address, x.nbytes, other)
    other.synchronize()


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One fault, the case of the suite that fails for it, and a pattern of what the case says then."""

    name: str
    plant: Plant
    case: str
    says: str


FAULTS = (
    Fault(
        name="missing barrier",
        plant=kernel(
            "softmax",
            "scratch[threadIdx.x / 32] = value;\n  __syncthreads();",
            "scratch[threadIdx.x / 32] = value;",
        ),
        case="softmax/softmax/3x1025-f32",
        says="race|got",
    ),
    Fault(
        name="missing barrier before scratch is used again",
        plant=kernel(
            "normalization", "F::of(value, scratch[warp]);\n  __syncthreads();", "F::of(value, scratch[warp]);"
        ),
        case="normalization/layer-norm/3x1025-f32",
        says="race|got",
    ),
    Fault(
        name="wrong stride",
        plant=kernel("elementwise", "at * g.steps[a][axis]", "at * g.steps[0][axis]"),
        case="elementwise/add/3x1_1x4-f32",
        says="got",
    ),
    Fault(
        name="out-of-bounds tail",
        plant=kernel(
            "copy", "i < count; i += stride()) out[i] = (int)i;", "i <= count; i += stride()) out[i] = (int)i;"
        ),
        case="storage/arange/63",
        says="after the allocation",
    ),
    Fault(
        name="uninitialised shared memory",
        plant=kernel("softmax", "warp < warps; ++warp", "warp < 32; ++warp"),
        case="softmax/softmax/3x1025-f32",
        says="race|got",
    ),
    Fault(
        name="wrong reduction width",
        plant=kernel("softmax", "int distance = 16; distance > 0", "int distance = 8; distance > 0"),
        case="softmax/softmax/4x65-f32",
        says="got",
    ),
    Fault(
        name="elements behind the end of a row",
        plant=kernel("softmax", "if (k < size - i) sum += exp(wide", "sum += exp(wide"),
        case="softmax/softmax/4x65-f32",
        says="got",
    ),
    Fault(
        name="threads that leave before a barrier",
        plant=kernel("softmax", "if (warps == 1) return value;", "if (warps == 1 || threadIdx.x < 32) return value;"),
        case="softmax/softmax/3x1025-f32",
        says="got|barrier|race",
    ),
    Fault(
        name="a shuffle that half a warp has left",
        plant=kernel(
            "softmax",
            "over_warp(T value) {\n",
            "over_warp(T value) {\n  if (threadIdx.x % 32 > 15) return value;\n",
        ),
        case="softmax/softmax/4x65-f32",
        says="lane",
    ),
    Fault(
        name="a verdict that not every block may give",
        plant=kernel("adam", "if (bad && threadIdx.x == 0)", "if (bad && threadIdx.x == 0 && blockIdx.x == 0)"),
        case="adam/refusal/nan-first-moment-donated",
        says="got|finite",
    ),
    Fault(
        name="claims without atomics",
        plant=kernel("indexing", "atomicMax(winners + ids[i], (int)i);", "winners[ids[i]] = (int)i;"),
        case="indexing/one-wins/5x3-f32-M40",
        says="race|got",
    ),
    Fault(
        name="missing stream ordering",
        plant=lambda monkeypatch: monkeypatch.setattr(Place, "download", on_a_queue_of_its_own),
        case="elementwise/add/5x65-f16",
        says="got",
    ),
    Fault(
        name="aliasing: written where it lies, given away or not",
        plant=lambda monkeypatch: monkeypatch.setattr(CudaIndexing, "_own", lambda _, base, donate: base),
        case="indexing/scatter-add-rows/9x5-f32-M20",
        says="input|changed|wrote|written",
    ),
)


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], OpenBackend]]:
    """Opens the backend on a place of its own, with kernels compiled anew; the device is mended afterwards."""
    monkeypatch.setattr(cupy.emulated.settings, "order", "all")

    def make() -> OpenBackend:
        fresh = Place("cuda:emulated", 0)
        monkeypatch.setattr(backend, "why_not", lambda _: None)
        monkeypatch.setattr(backend, "place_of", lambda _: fresh)
        return OpenBackend.wrap(turret_backends()[0], backend.CudaBackend("emulated"), "emulated")

    yield make
    cupy.emulated.reset()


@pytest.mark.parametrize("case", sorted({fault.case for fault in FAULTS}))
def test_without_a_fault_its_case_passes(case: str, opened: Callable[[], OpenBackend]) -> None:
    found = execute(CASES[case], Subject(opened()), Rules())
    assert found.status is Status.PASSED, found.message


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name.replace(" ", "-"))
def test_a_fault_is_found_out(fault: Fault, opened: Callable[[], OpenBackend], monkeypatch: pytest.MonkeyPatch) -> None:
    fault.plant(monkeypatch)
    found = execute(CASES[fault.case], Subject(opened()), Rules())
    assert found.status is Status.FAILED
    assert re.search(fault.says, found.message), found.message


ROWS, COLUMNS = 2**21 + 2**12, 1023  # of bytes: 2 GiB and a little more, of which few pages are ever touched


def row_behind_two_gib(opened: OpenBackend) -> tuple[Any, Any]:
    """A row written to the end of a large table and read back, and what it should be."""
    tools, place = opened.tools, opened.backend._place  # type: ignore[attr-defined]
    want = np.random.default_rng(0).integers(0, 255, (1, COLUMNS), dtype=np.uint8)
    table = place.empty((ROWS, COLUMNS), np.dtype(np.uint8))
    ids = tools.storage.from_host(np.array([ROWS - 1], np.int32))
    table = tools.indexing.set_rows(table, ids, tools.storage.from_host(want), donate=True)
    return tools.storage.to_host(tools.indexing.gather_rows(table, ids)), want


def test_a_row_behind_two_gib_is_found(opened: Callable[[], OpenBackend]) -> None:
    got, want = row_behind_two_gib(opened())
    assert got.tolist() == want.tolist()


def test_an_index_of_32_bits_is_found_out(opened: Callable[[], OpenBackend], monkeypatch: pytest.MonkeyPatch) -> None:
    right = "ids[token] * words + (i - token * words)"
    kernel("indexing", f"table[{right}]", f"table[(int)({right})]")(monkeypatch)
    with pytest.raises(BackendUnavailable, match="cudaErrorIllegalAddress"):
        row_behind_two_gib(opened())


def kept_result(opened: OpenBackend) -> Any:
    """What a program returned in a buffer that was given to it, after the next call with another array."""
    tools = opened.tools
    program = tools.compile.compile(lambda x: (x,), donate=(0,))
    (kept,) = program(tools.storage.from_host(np.full(3, 1.0, np.float32)))
    program(tools.storage.from_host(np.full(3, 2.0, np.float32)))
    return tools.storage.to_host(kept).tolist()


def test_a_lent_buffer_that_is_overwritten_is_found_out(
    opened: Callable[[], OpenBackend], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert kept_result(opened()) == [1.0] * 3
    monkeypatch.setattr(Buffer, "is_lent", False)
    assert kept_result(opened()) == [2.0] * 3
