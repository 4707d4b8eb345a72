"""NF4 weights against the format written out, float64 products and the derived version, in every order of threads."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import cupy
import numpy as np
import numpy.typing as npt
import pytest
from cupy import emulated

from turret.derived.quantized_linear import DerivedQuantizedLinear, dynamic_levels, linear_levels
from turret.spi import NF4_LEVELS, DType, Packed, ScaleCode, Shape, Toolset
from turret_cuda import quantized_linear
from turret_cuda.backend import CudaBackend
from turret_cuda.place import Place
from turret_cuda.quantized_linear import CudaQuantizedLinear
from turret_cuda.storage import CudaStorage

X = npt.NDArray[Any]
LEVELS = np.array(NF4_LEVELS, np.float32)
CODES: tuple[ScaleCode, ...] = ("float32", "dynamic", "linear")
SCALE_LEVELS: dict[ScaleCode, X] = {"dynamic": dynamic_levels(), "linear": linear_levels()}
TOLERANCES: dict[DType, float] = {"float32": 2e-6, "float64": 1e-14, "float16": 2e-3, "bfloat16": 1.6e-2}
SHAPES: list[tuple[Shape, int]] = [
    ((1,), 32),
    ((33,), 32),
    ((5, 7), 64),
    ((3, 5, 7), 128),
    ((10,), 4096),
    ((64, 65), 4096),
    ((3, 512), 512),
    ((96, 100), 32),  # 300 blocks: two groups of scales
    ((40, 256), 32),
]


@pytest.fixture(autouse=True)
def every_order(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(emulated.settings, "order", "all")
    yield
    emulated.reset()


def middles(levels: X) -> X:
    return ((levels[:-1].astype(np.float64) + levels[1:]) / 2).astype(np.float32)


def units(values: X, block: int) -> tuple[X, X]:
    """Values over the largest magnitude of their block, and those."""
    tiles = np.zeros(-(-values.size // block) * block, np.float32)
    tiles[: values.size] = values.reshape(-1)
    blocks = tiles.reshape(-1, block)
    tops = np.abs(blocks).max(axis=1, initial=0.0).astype(np.float32)
    return (blocks / np.where(tops == 0, np.float32(1), tops)[:, None]).reshape(-1)[: values.size], tops


def packed_by_hand(weight: X, block: int) -> tuple[X, X]:
    values, scales = units(weight.astype(np.float32), block)
    nibbles = np.searchsorted(middles(LEVELS), values, side="left")
    nibbles = np.append(nibbles, [7] * (nibbles.size % 2)).astype(np.uint8)
    return nibbles[0::2] << 4 | nibbles[1::2], scales


def unpacked_by_hand(codes: X, scales: X, shape: Shape, block: int) -> X:
    """Every value rounded once, to float32."""
    count = math.prod(shape)
    values = LEVELS[np.stack([codes >> 4, codes & 15], axis=1).reshape(-1)[:count]]
    return np.asarray(values * np.repeat(scales, block)[:count]).reshape(shape)


class Device:
    def __init__(self, place: Place) -> None:
        self.place, self.storage, self.slot = place, CudaStorage(place), CudaQuantizedLinear(place)
        self.draw = np.random.default_rng(3)

    def put(self, x: X, dtype: DType = "float32") -> Any:
        return self.storage.from_host(x, dtype=dtype)

    def made(self, *shape: int, dtype: DType = "float32") -> Any:
        return self.put(self.draw.standard_normal(shape), dtype)

    def get(self, x: Any) -> X:
        return self.storage.to_host(x)

    def exact(self, x: Any) -> X:
        return self.get(x).astype(np.float64)

    def packed(self, *shape: int, block: int = 64, code: ScaleCode = "float32") -> Packed[Any]:
        return self.slot.pack(self.made(*shape), block=block, scales=code)

    def same(self, got: Any, want: X) -> None:
        host = self.get(got)
        assert (host.shape, host.dtype) == (want.shape, want.dtype)
        assert host.tobytes() == want.tobytes()

    def close(self, got: Any, want: X, dtype: DType) -> None:
        assert self.storage.dtype_of(got) == dtype
        assert got.shape == want.shape
        allowed = TOLERANCES[dtype] * max(1.0, float(np.abs(want).max(initial=0.0)))
        assert float(np.abs(self.exact(got) - want).max(initial=0.0)) <= allowed

    def launched(self, work: Callable[[], Any]) -> set[str]:
        """The kernels that `work` queues."""
        self.place.wait("a test")
        before = emulated.launches.copy()
        work()
        self.place.wait("a test")
        return set(emulated.launches - before)


@pytest.fixture
def do(place: Place) -> Device:
    return Device(place)


@pytest.fixture(scope="module")
def derived() -> DerivedQuantizedLinear[Any]:
    return DerivedQuantizedLinear(CudaBackend("emulated").capabilities().required)


@pytest.mark.parametrize("dtype", sorted(TOLERANCES))
@pytest.mark.parametrize(("shape", "block"), SHAPES)
def test_codes_and_scales_are_those_of_the_format_bit_for_bit(
    do: Device, derived: DerivedQuantizedLinear[Any], shape: Shape, block: int, dtype: DType
) -> None:
    weight = do.made(*shape, dtype=dtype)
    got, same = (slot.pack(weight, block=block, scales="float32") for slot in (do.slot, derived))
    codes, scales = packed_by_hand(do.get(weight), block)
    do.same(got.codes, codes)
    do.same(got.scales, scales)
    do.same(same.codes, codes)
    do.same(same.scales, scales)
    assert (got.group_scales, got.offset, got.shape, got.block) == (None, None, shape, block)
    want = unpacked_by_hand(codes, scales, shape, block)
    do.same(do.slot.unpack(got), want)
    do.same(derived.unpack(got), want)


@pytest.mark.parametrize(("shape", "block"), [*SHAPES, ((2, 3, 4096), 32)])
@pytest.mark.parametrize("code", CODES[1:])
def test_coded_scales_follow_their_mean_bit_for_bit(
    do: Device, derived: DerivedQuantizedLinear[Any], shape: Shape, block: int, code: ScaleCode
) -> None:
    weight, levels = do.made(*shape), SCALE_LEVELS[code]
    got = do.slot.pack(weight, block=block, scales=code)
    assert got.scale_code == code
    codes, scales = packed_by_hand(do.get(weight), block)
    do.same(got.codes, codes)
    offset = do.get(got.offset)
    do.same(got.offset, np.array(scales.astype(np.float64).mean(), np.float32))
    centred, tops = units(scales - offset, 256)
    do.same(got.group_scales, tops)
    coded = np.searchsorted(middles(levels), centred, side="left").astype(np.uint8)
    do.same(got.scales, coded)
    restored = levels[coded] * np.repeat(tops, 256)[: scales.size] + offset
    restored = np.maximum(restored, 0) if code == "linear" else restored
    want = unpacked_by_hand(codes, restored, shape, block)
    do.same(do.slot.unpack(got), want)
    do.same(derived.unpack(got), want)


def test_known_bytes(do: Device) -> None:
    weight = np.zeros((1, 33), np.float32)
    weight[0, :6] = [2, -2, 0.1, -1, 1.5, 0.44]
    packed = do.slot.pack(do.put(weight), block=32, scales="float32")
    # 1.0 and -1.0; 0.05 above the middle of 0 and 0.0796; -0.5; 0.75; 0.22; behind an odd end stands the code of 0
    assert do.get(packed.codes).tolist() == [0xF0, 0x82, 0xEA, *[0x77] * 14]
    assert do.get(packed.scales).tolist() == [2, 0]


def test_ties_go_down_and_every_byte_is_two_levels(do: Device) -> None:
    ties = np.append(middles(LEVELS), np.float32(1))
    codes = do.get(do.slot.pack(do.put(np.tile(ties, 2)), block=32, scales="float32").codes)
    assert np.stack([codes >> 4, codes & 15], axis=1).reshape(-1)[:16].tolist() == [*range(15), 15]
    every = Packed(do.put(np.arange(256), "uint8"), do.put(np.ones(8)), None, None, (2, 256), 64, "float32")
    do.same(do.slot.unpack(every), np.stack([np.repeat(LEVELS, 16), np.tile(LEVELS, 16)], axis=1).reshape(2, 256))


def test_a_nan_stays_in_its_block(do: Device) -> None:
    weight = np.ones((3, 32), np.float32)
    weight[1, 5] = np.nan
    packed = do.slot.pack(do.put(weight), block=32, scales="float32")
    assert np.isnan(do.get(packed.scales)).tolist() == [False, True, False]
    assert (do.get(do.slot.unpack(packed))[[0, 2]] == 1).all()


@pytest.mark.parametrize("code", CODES)
@pytest.mark.parametrize("shape", [(4, 20), (0, 20), (4, 0)])
def test_zeros_and_nothing_at_all_pass(do: Device, code: ScaleCode, shape: Shape) -> None:
    packed = do.slot.pack(do.put(np.zeros(shape)), block=32, scales=code)
    do.same(do.slot.unpack(packed), np.zeros(shape, np.float32))
    x, dy, bias = do.made(3, shape[1]), do.made(3, shape[0]), do.made(shape[0])
    do.same(do.slot.linear(x, packed, bias), np.tile(do.get(bias), (3, 1)))
    assert not do.get(do.slot.linear(x, packed, None)).any()
    assert not do.get(do.slot.linear_vjp_input(dy, packed)).any()
    assert do.slot.linear(x[:0], packed, None).shape == (0, shape[0])


@pytest.mark.parametrize("view", ["transposed", "strided", "offset", "backwards"])
def test_views_are_packed_in_logical_order(do: Device, view: str) -> None:
    whole = do.made(66, 70)
    weight = {
        "transposed": whole.transpose((1, 0)),
        "strided": whole[::2, ::3],
        "offset": whole[3:, 1:],
        "backwards": whole[::-1],
    }[view]
    codes, scales = packed_by_hand(do.get(weight), 32)
    packed = do.slot.pack(weight, block=32, scales="float32")
    do.same(packed.codes, codes)
    do.same(packed.scales, scales)


@pytest.mark.parametrize("dtype", sorted(TOLERANCES))
@pytest.mark.parametrize("code", CODES)
@pytest.mark.parametrize(
    ("rows", "outputs", "width", "block"),
    [
        *((rows, 17, 96, 32) for rows in (1, 2, 3, 5, 8, 9)),
        (1, 9, 1056, 64),
        (3, 8, 2112, 4096),
        (1, 1, 32, 32),
        (2, 5, 65, 64),
        (1, 33, 7, 128),
        (20, 33, 65, 32),
        (64, 130, 64, 64),
    ],
)
def test_products_are_those_with_the_unpacked_weight(
    do: Device, rows: int, outputs: int, width: int, block: int, code: ScaleCode, dtype: DType
) -> None:
    packed = do.packed(outputs, width, block=block, code=code)
    weight = do.exact(do.slot.unpack(packed))
    x, dy, bias = (do.made(*shape, dtype=dtype) for shape in ((rows, width), (rows, outputs), (outputs,)))
    product = do.exact(x) @ weight.T
    do.close(do.slot.linear(x, packed, None), product, dtype)
    do.close(do.slot.linear(x, packed, bias), product + do.exact(bias), dtype)
    do.close(do.slot.linear_vjp_input(dy, packed), do.exact(dy) @ weight, dtype)


def test_the_derived_version_says_the_same(do: Device, derived: DerivedQuantizedLinear[Any]) -> None:
    packed, x, dy = do.packed(40, 96, code="dynamic"), do.made(2, 3, 96), do.made(2, 3, 40)
    do.close(do.slot.linear(x, packed, None), do.exact(derived.linear(x, packed, None)), "float32")
    do.close(do.slot.linear_vjp_input(dy, packed), do.exact(derived.linear_vjp_input(dy, packed)), "float32")


@pytest.mark.parametrize(
    ("rows", "width", "dtype", "names"),
    [
        (1, 64, "float32", {"linear_f32_1"}),
        (3, 64, "bfloat16", {"linear_bf16_4"}),
        (8, 64, "float16", {"linear_f16_8"}),
        (9, 64, "float32", {"unpack_f32"}),
        (1, 33, "bfloat16", {"unpack_bf16"}),
        (1, 64, "float64", {"unpack_f64"}),
    ],
)
def test_few_rows_meet_a_weight_that_is_nowhere_unpacked(
    do: Device, rows: int, width: int, dtype: DType, names: set[str]
) -> None:
    packed, x = do.packed(20, width), do.made(rows, width, dtype=dtype)
    assert do.launched(lambda: do.slot.linear(x, packed, None)) == names


@pytest.mark.parametrize("lie", ["by sequence", "transposed", "backwards", "broadcast"])
@pytest.mark.parametrize("rows", [2, 6])
def test_rows_are_read_wherever_they_lie(do: Device, lie: str, rows: int) -> None:
    packed = do.packed(64, 64)
    weight = do.exact(do.slot.unpack(packed))
    x = {
        "by sequence": lambda: do.made(3, rows, 2 * 64)[..., 64:],
        "transposed": lambda: do.made(64, rows, 3).transpose((2, 1, 0)),
        "backwards": lambda: do.made(3, rows, 64)[::-1, :, ::-1],
        "broadcast": lambda: cupy.broadcast_to(do.made(3, 1, 64), (3, rows, 64)),
    }[lie]()
    do.close(do.slot.linear(x, packed, None), do.exact(x) @ weight.T, "float32")
    do.close(do.slot.linear_vjp_input(x, packed), do.exact(x) @ weight, "float32")


@pytest.mark.parametrize("width", [64, 7])
def test_the_parts_of_a_packed_weight_may_be_views(do: Device, width: int) -> None:
    packed, x = do.packed(6, width, block=32, code="dynamic"), do.made(2, width)
    want = do.get(do.slot.linear(x, packed, None))
    for before, step in ((1, 1), (16, 1), (0, 2)):
        moved: list[Any] = []
        for name, dtype in (("codes", "uint8"), ("scales", "uint8"), ("group_scales", "float32")):
            host = do.get(getattr(packed, name))
            around = np.zeros(before + step * host.size, host.dtype)
            around[before::step] = host
            moved.append(do.put(around, dtype)[before::step])  # type: ignore[arg-type]
        views = Packed(moved[0], moved[1], moved[2], packed.offset, packed.shape, packed.block, packed.scale_code)
        do.close(do.slot.linear(x, views, None), want.astype(np.float64), "float32")
        do.same(do.slot.unpack(views), do.get(do.slot.unpack(packed)))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_of_a_large_weight_a_part_is_unpacked_at_a_time(
    do: Device, monkeypatch: pytest.MonkeyPatch, dtype: DType
) -> None:
    packed, x, dy = do.packed(50, 37, block=32), do.made(20, 37, dtype=dtype), do.made(20, 50, dtype=dtype)
    want = [do.get(y) for y in (do.slot.linear(x, packed, None), do.slot.linear_vjp_input(dy, packed))]
    monkeypatch.setattr(quantized_linear, "SCRATCH_BYTES", 1500)
    asked: list[int] = []
    empty = Place.empty

    def noted(place: Place, shape: Shape, kind: Any) -> Any:
        asked.append(math.prod(shape))
        return empty(place, shape, kind)

    monkeypatch.setattr(Place, "empty", noted)
    works: tuple[Callable[[], Any], ...] = (
        lambda: do.slot.linear(x, packed, None),
        lambda: do.slot.linear_vjp_input(dy, packed),
    )
    for work, exact in zip(works, want, strict=True):
        before = emulated.launches.copy()
        got = work()
        do.place.wait("a test")
        assert (emulated.launches - before).total() >= 3
        do.close(got, exact.astype(np.float64), dtype)
    assert max(asked) <= 20 * 50


def test_everything_has_the_same_bits_at_every_run_and_in_a_captured_program(do: Device, tools: Toolset[Any]) -> None:
    weight, x, many = do.made(70, 96), do.made(3, 96), do.made(30, 96)

    def step(weight: Any, x: Any, many: Any) -> tuple[Any, ...]:
        packed = do.slot.pack(weight, block=32, scales="dynamic")
        y, z = do.slot.linear(x, packed, None), do.slot.linear(many, packed, None)
        fields = packed.codes, packed.scales, packed.group_scales, packed.offset
        return *fields, y, z, do.slot.linear_vjp_input(z, packed)

    program = tools.compile.compile(step)
    runs = [[do.get(y).tobytes() for y in run(weight, x, many)] for run in (step, step, program, program)]
    assert runs[0] == runs[1] == runs[2] == runs[3]


@pytest.mark.parametrize("block", [32, 64, 4096])
def test_the_loss_is_the_published_one(do: Device, block: int) -> None:
    published = {32: (0.067746, 0.189726), 64: (0.072798, 0.203339), 4096: (0.092547, 0.262473)}
    coded = {32: (0.067867, 0.067827), 64: (0.072838, 0.072817), 4096: (0.092451, 0.092453)}
    weight = do.made(128, 1024)
    means = []
    for code in CODES:
        lost = np.abs(do.exact(do.slot.unpack(do.slot.pack(weight, block=block, scales=code))) - do.exact(weight))
        means.append((lost.mean(), (lost / np.abs(do.exact(weight))).mean()))
    assert means[0] == pytest.approx(published[block], rel=0.012)
    assert [mean for mean, _ in means[1:]] == pytest.approx(coded[block], rel=0.012)


@pytest.mark.parametrize("code", CODES[1:])
def test_a_scale_below_zero_is_zero_under_the_linear_code_only(do: Device, code: ScaleCode) -> None:
    given = np.array([1, 128, 255, 0])
    parts = do.put(np.full(64, 0xF0), "uint8"), do.put(given, "uint8"), do.put(np.ones(1)), do.put(np.array(0.5))
    packed: Packed[Any] = Packed(*parts, (4, 32), 32, code)
    scales = SCALE_LEVELS[code][given] + np.float32(0.5)
    assert (scales < 0).sum() == 2
    weight = (np.maximum(scales, 0) if code == "linear" else scales)[:, None] * np.tile([1.0, -1.0], 16)
    assert np.array_equal(do.exact(do.slot.unpack(packed)), weight)
    dy = do.made(3, 4)
    do.close(do.slot.linear_vjp_input(dy, packed), do.exact(dy) @ weight, "float32")
    for rows in (1, 20):
        x = do.made(rows, 32)
        do.close(do.slot.linear(x, packed, None), do.exact(x) @ weight.T, "float32")
