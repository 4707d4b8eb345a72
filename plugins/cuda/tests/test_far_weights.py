"""Packed weights beyond 2^31 values: kernels begin near the end, and of the arrays few pages are ever touched."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from cupy import emulated

from turret.derived.quantized_linear import dynamic_levels, linear_levels
from turret.spi import NF4_LEVELS, BackendUnavailable, DType, Packed, ScaleCode
from turret_cuda.kernels import source
from turret_cuda.place import Place
from turret_cuda.quantized_linear import CudaQuantizedLinear
from turret_cuda.storage import CudaStorage

X = npt.NDArray[Any]
LEVELS = np.array(NF4_LEVELS, np.float32)
SCALE_LEVELS: dict[ScaleCode, X] = {"dynamic": dynamic_levels(), "linear": linear_levels()}
FAR, BLOCK, WIDTH = 2**31, 64, 2**20
OUTPUTS = FAR // WIDTH + 1  # of a weight whose last row lies behind 2^31
# Where a kernel has its first element, and the same at the end.
STARTS = (
    ("i64 own = first() / 32;", f"i64 own = first() / 32 + {FAR // 32}ll;"),
    ("i64 group = blockIdx.x;", f"i64 group = blockIdx.x + {FAR // 256}ll;"),
    ("(i64)blockIdx.x * OUTPUTS", f"{FAR // WIDTH}ll + (i64)blockIdx.x * OUTPUTS"),
)


class Device:
    """A device whose kernels of packed weights begin near the end."""

    def __init__(self, code: ScaleCode) -> None:
        self.place, self.code = Place("cuda:emulated", 0), code
        self.storage, self.slot = CudaStorage(self.place), CudaQuantizedLinear(self.place)
        self.draw = np.random.default_rng(0)

    def put(self, x: X, dtype: DType = "float32") -> Any:
        return self.storage.from_host(x, dtype=dtype)

    def get(self, x: Any) -> X:
        return self.storage.to_host(x)

    def far(self, size: int, last: X | None = None, dtype: DType = "float32") -> Any:
        """So many values, of which only the last are known, if any."""
        there = self.place.empty((size,), self.put(np.zeros(1), dtype).dtype)
        if last is not None:
            self.place.copy_into(there[-last.size :], self.put(last, dtype))
        return there

    def launch(self, name: str, blocks: int, threads: int, *operands: Any) -> None:
        self.place.launch("quantized_linear", name, blocks, threads, self.slot._tables[self.code], *operands)

    def weight(self) -> tuple[Packed[Any], X]:
        """A weight of which only the last row is known, and that row."""
        codes, blocks = self.draw.integers(0, 256, WIDTH // 2), WIDTH // BLOCK
        far = self.far(OUTPUTS * WIDTH // 2, codes, "uint8")
        values = LEVELS[np.stack([codes >> 4, codes & 15], axis=1).reshape(-1)]
        if self.code == "float32":
            scales = self.draw.uniform(1, 2, blocks).astype(np.float32)
            parts = self.far(OUTPUTS * blocks, scales), None, None
        else:
            coded, tops = self.draw.integers(1, 256, blocks), self.draw.uniform(0.5, 1, blocks // 256)
            scales = SCALE_LEVELS[self.code][coded] * np.repeat(tops.astype(np.float32), 256) + np.float32(0.25)
            scales = np.maximum(scales, 0) if self.code == "linear" else scales
            far_codes, far_tops = self.far(OUTPUTS * blocks, coded, "uint8"), self.far(OUTPUTS * blocks // 256, tops)
            parts = far_codes, far_tops, self.put(np.array(0.25))
        return Packed(far, *parts, (OUTPUTS, WIDTH), BLOCK, self.code), values * np.repeat(scales, BLOCK)


def nearest(units: X, levels: X) -> X:
    return np.searchsorted(((levels[:-1].astype(np.float64) + levels[1:]) / 2).astype(np.float32), units, side="left")


def packed(do: Device) -> tuple[X, X]:
    """Bytes and scales of a block of 32 and one of a single value."""
    last = do.draw.standard_normal(33).astype(np.float16).astype(np.float32)
    weight, codes = do.far(FAR + 33, last, "float16"), do.far(FAR // 2 + 17, dtype="uint8")
    scales = do.far(FAR // 32 + 2)
    do.launch("pack_f16", 1, 64, weight, codes, scales, FAR + 33, 32)
    tops = np.array([np.abs(last[:32]).max(), abs(last[32])])
    nibbles = np.append(nearest(last / np.repeat(tops, [32, 1]), LEVELS), 7)
    want = np.append(nibbles[0::2] * 16 + nibbles[1::2], tops)
    return np.append(do.get(codes[-17:]), do.get(scales[-2:])), want


def scales_packed(do: Device) -> tuple[X, X]:
    """Codes of the last group of scales, and the scale of the group."""
    last = do.draw.uniform(0, 2, 5).astype(np.float32)
    scales, codes, groups = do.far(FAR + 5, last), do.far(FAR + 5, dtype="uint8"), do.far(FAR // 256 + 1)
    do.launch("pack_scales", 1, 256, scales, do.put(np.array(1.0)), codes, groups, FAR + 5)
    centred = last - np.float32(1)
    top = np.abs(centred).max()
    want = np.append(nearest(centred / top, SCALE_LEVELS[do.code]), top)
    return np.append(do.get(codes[-5:]), do.get(groups[-1:])), want


def unpacked(do: Device) -> tuple[X, X]:
    """The end of the last row."""
    weight, row = do.weight()
    out = do.far(1024)
    do.slot._unpack(weight, out, row=OUTPUTS - 1, rows=1, column=WIDTH - 1024, columns=1024, width=WIDTH)
    return do.get(out), row[-1024:]


def multiplied(do: Device) -> tuple[X, X]:
    """The last output; x is zero but for its end."""
    weight, row = do.weight()
    x, y = np.zeros(WIDTH), do.far(OUTPUTS)
    x[-4096:] = do.draw.integers(-4, 5, 4096)
    do.launch("linear_f32_1", 1, 256, *do.slot._parts(weight), do.put(x), None, y, 1, OUTPUTS, WIDTH)
    return do.get(y[-1:]).astype(np.float64).round(1), np.array([row.astype(np.float64) @ x]).round(1)


WORKS: dict[str, tuple[Callable[[Device], tuple[X, X]], tuple[ScaleCode, ...], tuple[str, str]]] = {
    "pack": (packed, ("float32",), ("codes[i / 2]", "codes[(int)i / 2]")),
    "pack scales": (scales_packed, ("dynamic", "linear"), ("codes[i] = (u8)code", "codes[(int)i] = (u8)code")),
    "unpack": (unpacked, ("float32", "dynamic", "linear"), ("codes[element / 2]", "codes[(int)element / 2]")),
    "linear": (multiplied, ("float32", "dynamic", "linear"), ("(codes + element / 2)", "(codes + (int)element / 2)")),
}


@pytest.fixture(autouse=True)
def begun(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., None]]:
    """Replaces pieces of the source, each of which stands there once; at first, where kernels begin."""
    text = source.text("quantized_linear")

    def replace(*pieces: tuple[str, str]) -> None:
        nonlocal text
        for old, new in pieces:
            assert text.count(old) == 1, old
            text = text.replace(old, new)

    original = source.text
    monkeypatch.setattr(source, "text", lambda name: text if name == "quantized_linear" else original(name))
    monkeypatch.setattr(emulated.settings, "order", "forward")
    emulated.set_total_memory(16 * 2**30)
    replace(*STARTS)
    yield replace
    emulated.set_total_memory(4 * 2**30)
    emulated.reset()


@pytest.mark.parametrize(("name", "code"), [(name, code) for name, work in WORKS.items() for code in work[1]])
def test_values_behind_two_to_the_31_are_found(name: str, code: ScaleCode) -> None:
    got, want = WORKS[name][0](Device(code))
    assert got.tolist() == want.tolist()


@pytest.mark.parametrize("name", WORKS)
def test_an_index_of_32_bits_is_found_out(name: str, begun: Callable[..., None]) -> None:
    work, codes, _ = WORKS[name]
    begun(*(piece for _, _, piece in WORKS.values()))
    try:
        got, want = work(Device(codes[-1]))
    except BackendUnavailable as error:
        assert "cudaErrorIllegalAddress" in str(error)
    else:
        assert got.tolist() != want.tolist()
