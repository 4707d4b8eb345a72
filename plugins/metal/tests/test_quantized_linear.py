"""NF4 weights: bytes and values beside the derived slot, products beside float64, memory, and what does not fit."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays_of

from turret.derived.quantized_linear import DerivedQuantizedLinear, dynamic_levels, linear_levels
from turret.spi import NF4_LEVELS, DType, DTypeError, Packed, ScaleCode, ShapeError, Toolset, TurretError, Unsupported
from turret_metal import quantized_linear
from turret_metal.backend import MetalBackend
from turret_metal.quantized_linear import MetalQuantizedLinear
from turret_metal.stream import Stream, stream_of

Put = Callable[[Any], mx.array]
CODES: tuple[ScaleCode, ...] = ("float32", "dynamic", "linear")


@pytest.fixture(scope="module", params=["cpu", "gpu"])
def slot(request: pytest.FixtureRequest) -> MetalQuantizedLinear:
    """On the CPU device, whose stream may pass itself off as the GPU's."""
    stream = Stream("metal", mx.Device(mx.cpu), stream_of("cpu").total_bytes)
    stream.on_gpu = request.param == "gpu"
    return MetalQuantizedLinear(stream)


@pytest.fixture(scope="module")
def derived(backend: MetalBackend) -> DerivedQuantizedLinear[mx.array]:
    return DerivedQuantizedLinear(backend.capabilities().required)


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Several blocks of rows already for small matrices."""
    monkeypatch.setattr(quantized_linear, "FEWEST", 256)


def parts(packed: Packed[mx.array]) -> dict[str, mx.array]:
    found = {name: getattr(packed, name) for name in ("codes", "scales", "group_scales", "offset")}
    return {name: part for name, part in found.items() if part is not None}


def with_parts(packed: Packed[mx.array], held: tuple[mx.array, ...]) -> Packed[mx.array]:
    return replace(packed, codes=held[0], scales=held[1], group_scales=held[2], offset=held[3])


def unpacked(packed: Packed[mx.array]) -> np.ndarray:
    """The weight as float64, read off the bytes by the description of the layout."""
    host = {name: np.array(part) for name, part in parts(packed).items()}
    scales = host["scales"].astype(np.float64)
    if packed.scale_code != "float32":
        levels = {"dynamic": dynamic_levels, "linear": linear_levels}[packed.scale_code]()
        scales = levels[host["scales"]] * np.repeat(host["group_scales"], 256)[: scales.size] + host["offset"]
    count, levels = math.prod(packed.shape), np.array(NF4_LEVELS, np.float32).astype(np.float64)
    codes = np.stack([host["codes"] >> 4, host["codes"] & 15], axis=1).reshape(-1)[:count]
    return (levels[codes] * np.repeat(scales, packed.block)[:count]).reshape(packed.shape)


def assert_same_bits(a: mx.array, b: mx.array, name: str) -> None:
    """But for the sign of zero: the largest of 0 and -0 may be either."""
    left, right = (host if host.dtype == np.uint8 else host + np.float32(0) for host in (np.array(a), np.array(b)))
    assert left.dtype == right.dtype, name
    assert left.shape == right.shape, name
    assert left.tobytes() == right.tobytes(), name


@pytest.mark.parametrize("code", CODES)
@pytest.mark.parametrize("block", [32, 64, 4096])
@pytest.mark.parametrize("shape", [(1,), (5, 7), (31, 33), (65, 66), (96, 100), (3, 5, 7)], ids=str)
def test_bytes_and_values_are_those_of_the_derived_slot(
    slot: MetalQuantizedLinear, derived: Any, draw: np.random.Generator, put: Put, shape: tuple[int, ...], block: int,
    code: ScaleCode, small: None,
) -> None:  # fmt: skip
    weight = draw.standard_normal(shape).astype(np.float32)
    weight.reshape(-1)[:40] = 0  # a block of zeros
    mine, theirs = (each.pack(put(weight), block=block, scales=code) for each in (slot, derived))
    assert (mine.shape, mine.block, mine.scale_code) == (shape, block, code)
    assert parts(mine).keys() == parts(theirs).keys()
    for name, part in parts(mine).items():
        assert_same_bits(part, parts(theirs)[name], name)
    assert_same_bits(slot.unpack(mine), derived.unpack(theirs), "weight")


def test_a_weight_between_two_levels_takes_the_lower_one(slot: MetalQuantizedLinear, put: Put) -> None:
    levels = np.array(NF4_LEVELS, np.float32)
    middles = ((levels[1:].astype(np.float64) + levels[:-1]) / 2).astype(np.float32)
    got = np.array(slot.pack(put(np.append(middles, np.float32(1))), block=32, scales="float32").codes)
    assert got.tolist() == [16 * i + i + 1 for i in range(0, 14, 2)] + [16 * 14 + 15]


def test_a_linear_scale_is_never_below_zero(slot: MetalQuantizedLinear, put: Put) -> None:
    codes, scales = put(np.full(64, 0xFF, np.uint8)), put(np.array([0, 1, 128, 255], np.uint8))
    packed = Packed(codes, scales, put(np.array([1.0])), put(0.5), (4, 32), 32, "linear")
    got = np.array(slot.unpack(packed))
    np.testing.assert_allclose(got, np.array([0, 0, 0.5, 1.5])[:, None] * np.ones(32), rtol=1e-6)


@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_any_finite_weights_are_packed_like_the_derived_slot(
    slot: MetalQuantizedLinear, derived: Any, put: Put, data: st.DataObject
) -> None:
    numbers = st.floats(-(2.0**100), 2.0**100, width=32, allow_subnormal=False)
    weight = data.draw(arrays_of.arrays(np.float32, st.integers(1, 200), elements=numbers))
    code, block = data.draw(st.sampled_from(CODES)), data.draw(st.sampled_from([32, 64]))
    mine, theirs = (each.pack(put(weight), block=block, scales=code) for each in (slot, derived))
    for name, part in parts(mine).items():
        assert_same_bits(part, parts(theirs)[name], name)
    assert_same_bits(slot.unpack(mine), derived.unpack(theirs), "weight")


def test_a_view_is_packed_as_what_it_shows(slot: MetalQuantizedLinear, draw: np.random.Generator, put: Put) -> None:
    weight = draw.standard_normal((66, 40)).astype(np.float32)
    turned = slot.pack(mx.swapaxes(put(weight), 0, 1), block=32, scales="float32")
    whole = slot.pack(put(np.ascontiguousarray(weight.T)), block=32, scales="float32")
    for name, part in parts(turned).items():
        assert_same_bits(part, parts(whole)[name], name)


@pytest.mark.parametrize("code", CODES)
@pytest.mark.parametrize(
    ("rows", "outs", "ins", "block"),
    [(3, 33, 64, 64), (1, 64, 130, 128), (0, 4, 8, 32), (17, 1, 5, 4096), (5, 96, 31, 32), (2, 70, 48, 64)],
)
def test_products_are_those_of_the_unpacked_weight(
    slot: MetalQuantizedLinear, draw: np.random.Generator, put: Put, small: None, rows: int, outs: int, ins: int,
    block: int, code: ScaleCode,
) -> None:  # fmt: skip
    packed = slot.pack(put(draw.standard_normal((outs, ins))), block=block, scales=code)
    weight = unpacked(packed)
    x, bias, dy = (draw.standard_normal(s).astype(np.float32) for s in ((2, rows, ins), (outs,), (rows, outs)))
    slack = 1e-5 * math.sqrt(max(ins, outs))
    np.testing.assert_allclose(np.array(slot.linear(put(x), packed, None)), x @ weight.T, rtol=1e-5, atol=slack)
    np.testing.assert_allclose(
        np.array(slot.linear(put(x), packed, put(bias))), x @ weight.T + bias, rtol=1e-5, atol=slack
    )
    np.testing.assert_allclose(np.array(slot.linear_vjp_input(put(dy), packed)), dy @ weight, rtol=1e-5, atol=slack)


@pytest.mark.parametrize(("dtype", "unit"), [("float16", 2.0**-11), ("bfloat16", 2.0**-8)])
def test_halves_are_rounded_after_the_product_and_levels_never(
    tools: Toolset[mx.array], draw: np.random.Generator, put: Put, dtype: DType, unit: float
) -> None:
    slot = tools.quantized_linear
    packed = slot.pack(put(draw.standard_normal((20, 130))), block=64, scales="dynamic")
    x, dy = (tools.storage.from_host(draw.standard_normal((4, n)), dtype=dtype) for n in (130, 20))
    host_x, host_dy = (tools.storage.to_host(each).astype(np.float64) for each in (x, dy))
    for got, want in (
        (slot.linear(x, packed, None), host_x @ unpacked(packed).T),
        (slot.linear_vjp_input(dy, packed), host_dy @ unpacked(packed)),
    ):
        assert tools.storage.dtype_of(got) == dtype
        np.testing.assert_allclose(tools.storage.to_host(got).astype(np.float64), want, rtol=1.01 * unit, atol=1e-4)


def test_an_empty_weight_has_empty_products(slot: MetalQuantizedLinear, put: Put) -> None:
    nothing = put(np.zeros((0,), np.uint8)), put(np.zeros((0,), np.float32))
    wide, tall = (Packed(*nothing, None, None, shape, 32, "float32") for shape in ((3, 0), (0, 3)))
    assert np.array(slot.linear(put(np.ones((2, 0))), wide, put(np.ones(3)))).tolist() == [[1] * 3] * 2
    assert slot.linear(put(np.ones((2, 3))), tall, None).shape == (2, 0)
    assert np.array(slot.linear_vjp_input(put(np.ones((2, 0))), tall)).tolist() == [[0] * 3] * 2


@pytest.mark.parametrize("captured", [False, True], ids=["eager", "captured"])
def test_a_weight_is_unpacked_in_blocks_and_one_weight_after_the_other(
    tools: Toolset[mx.array], draw: np.random.Generator, put: Put, captured: bool
) -> None:
    slot, size, count = tools.quantized_linear, 1024, 4
    packs = [slot.pack(put(draw.standard_normal((size, size))), block=64, scales="dynamic") for _ in range(count)]
    held = [part for packed in packs for part in parts(packed).values()]
    tools.storage.synchronize(*held)

    def step(x: mx.array, *held: mx.array) -> tuple[mx.array, ...]:
        each = [with_parts(packed, held[4 * i : 4 * i + 4]) for i, packed in enumerate(packs)]
        dx = x
        for packed in each:
            x = slot.linear(x, packed, None)
        for packed in reversed(each):
            dx = slot.linear_vjp_input(dx, packed)
        return x, dx

    run = tools.compile.compile(step) if captured else step
    x = put(np.ones((2, size)))
    tools.storage.synchronize(*run(x, *held))
    mx.clear_cache()
    mx.reset_peak_memory()
    used = mx.get_active_memory()
    tools.storage.synchronize(*run(x, *held))
    assert mx.get_peak_memory() - used < 2.5 * 4 * size**2  # of eight unpackings; all at once would be 32 MB and more


def test_a_program_may_use_a_weight_twice(
    tools: Toolset[mx.array], draw: np.random.Generator, put: Put, small: None
) -> None:
    slot = tools.quantized_linear
    packed = slot.pack(put(draw.standard_normal((64, 64))), block=64, scales="dynamic")
    held = tuple(parts(packed).values())

    def step(x: mx.array, *held: mx.array) -> tuple[mx.array, ...]:
        again = with_parts(packed, held)
        return slot.linear(x, again, None), slot.linear_vjp_input(x, again), slot.linear(x, again, x[0])

    x = put(draw.standard_normal((3, 64)))
    for got, want in zip(tools.compile.compile(step)(x, *held), step(x, *held), strict=True):
        np.testing.assert_allclose(tools.storage.to_host(got), tools.storage.to_host(want), rtol=1e-5, atol=1e-5)


def test_parts_that_do_not_fit_are_refused(slot: MetalQuantizedLinear, put: Put) -> None:
    good = slot.pack(put(np.ones((8, 48))), block=32, scales="dynamic")
    short, as_float = put(np.zeros(3, np.uint8)), put(np.zeros(12))
    x = put(np.ones((2, 48)))
    bad: list[tuple[Packed[mx.array], type[TurretError], str]] = [
        (replace(good, codes=short), ShapeError, r"codes \(3,\) of a weight \(8, 48\).*wanted \(192,\)"),
        (replace(good, scales=short), ShapeError, r"scales \(3,\).*wanted \(12,\)"),
        (replace(good, scales=as_float), DTypeError, "scales of a packed weight are .*float32; wanted uint8"),
        (replace(good, scale_code="float32"), ShapeError, "neither group_scales nor offset"),
        (replace(good, group_scales=None), ShapeError, "no group_scales"),
        (replace(good, offset=None), ShapeError, "no offset"),
        (replace(good, block=48), Unsupported, "blocks of 48"),
        (replace(good, block=64), ShapeError, r"scales \(12,\)"),
        (replace(good, scale_code="double"), Unsupported, "'double'"),  # type: ignore[arg-type]
        (replace(good, shape=(384,)), ShapeError, r"wanted \(O, I\)"),
    ]
    for packed, error, text in bad:
        with pytest.raises(error, match=text):
            slot.linear(x, packed, None)
    with pytest.raises(ShapeError, match=r"x \(2, 47\).*wanted x \(\.\.\., 48\)"):
        slot.linear(put(np.ones((2, 47))), good, None)
    with pytest.raises(ShapeError, match=r"dy \(2, 48\).*wanted dy \(\.\.\., 8\)"):
        slot.linear_vjp_input(x, good)
    for block in (0, 16, 48, 8192):
        with pytest.raises(Unsupported, match=f"blocks of {block} weights; wanted a power of two from 32 to 4096"):
            slot.pack(x, block=block, scales="float32")
    with pytest.raises(Unsupported, match="one of float32, dynamic, linear"):
        slot.pack(x, block=32, scales="double")  # type: ignore[arg-type]
