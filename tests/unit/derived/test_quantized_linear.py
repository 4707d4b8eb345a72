from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from turret.derived.quantized_linear import dynamic_levels, linear_levels
from turret.spi import NF4_LEVELS, Packed, ScaleCode

LEVELS = np.array(NF4_LEVELS)
CODES: tuple[ScaleCode, ...] = ("float32", "dynamic", "linear")


def nearest(values: Any, levels: Any) -> Any:
    """Index of the nearest level, the lower one at a tie; float64."""
    return np.argmin(np.abs(np.asarray(values, np.float64)[..., None] - levels.astype(np.float64)), axis=-1)


def tiles(weight: Any, block: int) -> Any:
    flat = np.zeros(-(-weight.size // block) * block, np.float32)
    flat[: weight.size] = weight.reshape(-1)
    return flat.reshape(-1, block)


def packed_by_hand(weight: Any, block: int) -> tuple[Any, Any]:
    blocks = tiles(weight, block)
    scales = np.abs(blocks).max(axis=1)
    codes = nearest(blocks / np.where(scales, scales, 1)[:, None], LEVELS).reshape(-1)
    return (codes[0::2] * 16 + codes[1::2]).astype(np.uint8)[: (weight.size + 1) // 2], scales


def unpacked_by_hand(codes: Any, scales: Any, shape: tuple[int, ...], block: int) -> Any:
    count = int(np.prod(shape))
    values = LEVELS[np.stack([codes >> 4, codes & 15], axis=1).reshape(-1)][:count]
    return (values * np.repeat(scales.astype(np.float64), block)[:count]).reshape(shape)


@pytest.mark.parametrize("block", [32, 64, 4096])
@pytest.mark.parametrize("shape", [(24, 40), (5, 7), (1, 1), (3, 65)])
def test_bytes_scales_and_values_are_those_of_the_format(
    eager_bench: Any, normal: Any, shape: tuple[int, ...], block: int
) -> None:
    bench, slot, weight = eager_bench, eager_bench.tools.quantized_linear, normal(*shape)
    packed = slot.pack(bench.put(weight), block=block, scales="float32")
    codes, scales = packed_by_hand(weight, block)
    bench.same(packed.codes, codes)
    bench.same(packed.scales, scales)
    assert (packed.group_scales, packed.offset, packed.shape, packed.block) == (None, None, shape, block)
    bench.close(slot.unpack(packed), unpacked_by_hand(codes, scales, shape, block), 3e-7)


def test_packing_and_products_can_be_traced(jax_bench: Any, normal: Any) -> None:
    import jax

    slot, weight, x, dy = jax_bench.tools.quantized_linear, normal(9, 15), normal(2, 15), normal(2, 9)

    def traced(weight: Any, x: Any, dy: Any) -> tuple[Any, ...]:
        plain, *coded = (slot.pack(weight, block=32, scales=code) for code in CODES)
        results = [(slot.unpack(p), slot.linear(x, p, None), slot.linear_vjp_input(dy, p)) for p in coded]
        return plain.codes, plain.scales, *results[0], *results[1]

    made = jax.jit(traced)(jax_bench.put(weight), jax_bench.put(x), jax_bench.put(dy))
    codes, scales = packed_by_hand(weight, 32)
    jax_bench.same(made[0], codes)
    jax_bench.same(made[1], scales)
    unpacked = jax_bench.get(made[2]).astype(np.float64)
    jax_bench.close(made[2], unpacked_by_hand(codes, scales, (9, 15), 32), 0.01)
    jax_bench.close(made[3], x @ unpacked.T)
    jax_bench.close(made[4], dy @ unpacked)


def test_known_bytes(eager_bench: Any) -> None:
    weight = np.zeros((1, 33), np.float32)
    weight[0, :6] = [2, -2, 0.1, -1, 1.5, 0.44]
    packed = eager_bench.tools.quantized_linear.pack(eager_bench.put(weight), block=32, scales="float32")
    # 1.0 and -1.0; 0.05 above the middle of 0 and 0.0796; -0.5; 0.75; 0.22
    assert eager_bench.get(packed.codes).tolist() == [0xF0, 0x82, 0xEA, *[0x77] * 14]
    assert eager_bench.get(packed.scales).tolist() == [2, 0]


def test_every_level_comes_back_and_ties_go_down(eager_bench: Any) -> None:
    bench, slot = eager_bench, eager_bench.tools.quantized_linear
    levels = LEVELS.astype(np.float32)
    weight = np.concatenate([levels, levels]).reshape(4, 8)
    bench.same(slot.unpack(slot.pack(bench.put(weight), block=32, scales="float32")), weight)
    middles = ((LEVELS[:-1] + LEVELS[1:]) / 2).astype(np.float32)
    packed = slot.pack(
        bench.put(np.concatenate([middles, [1]]).astype(np.float32).reshape(1, 16)), block=32, scales="float32"
    )
    codes = bench.get(packed.codes)
    assert np.stack([codes >> 4, codes & 15], axis=1).reshape(-1).tolist() == [*range(15), 15]


def test_the_dynamic_levels_are_the_published_ones() -> None:
    levels = dynamic_levels()
    assert levels.shape == (256,) and (np.diff(levels) > 0).all()
    assert levels[0] == pytest.approx(-0.99296874, abs=1e-8) and levels[255] == 1 and levels[127] == 0
    assert levels[128] == pytest.approx(5.5e-7) and levels[129] == pytest.approx(3.25e-6)
    # of the 1024 bytes that bitsandbytes 0.50.2 makes, the same as torch 2.13's linspace gives
    bits = "e732639a65f497b4ad684bb166a4467708255edd5207757de8b8f0c7e1fda89c"
    assert hashlib.sha256(levels.tobytes()).hexdigest() == bits


def test_linear_levels_are_steps_of_one_in_127_about_128() -> None:
    levels = linear_levels()
    assert levels.dtype == np.float32 and levels.shape == (256,)
    assert (levels[1], levels[128], levels[255]) == (-1, 0, 1)
    np.testing.assert_allclose(np.diff(levels.astype(np.float64)), 1 / 127, rtol=1e-5)


@pytest.mark.parametrize("code", CODES[1:])
@pytest.mark.parametrize("shape", [(24, 40), (5, 7), (130, 130)])
def test_coded_scales_are_those_less_their_mean(
    eager_bench: Any, normal: Any, shape: tuple[int, ...], code: ScaleCode
) -> None:
    levels = {"dynamic": dynamic_levels, "linear": linear_levels}[code]()
    bench, slot, weight = eager_bench, eager_bench.tools.quantized_linear, normal(*shape)
    packed = slot.pack(bench.put(weight), block=32, scales=code)
    assert (packed.shape, packed.block, packed.scale_code) == (shape, 32, code)
    codes, scales = packed_by_hand(weight, 32)
    bench.same(packed.codes, codes)
    offset = np.float64(scales.astype(np.float64).mean())
    bench.close(packed.offset, offset, 1e-6)
    centred = tiles(scales - bench.get(packed.offset), 256)
    tops = np.abs(centred).max(axis=1)
    bench.same(packed.group_scales, tops)
    units = centred / np.where(tops, tops, 1)[:, None]
    want = nearest(units, levels).reshape(-1)[: scales.size]
    bench.same(packed.scales, want.astype(np.uint8))
    restored = levels[want] * np.repeat(tops, 256)[: scales.size].astype(np.float64) + offset
    bench.close(slot.unpack(packed), unpacked_by_hand(codes, restored, shape, 32), 1e-6)


@pytest.mark.parametrize("code", CODES[1:])
def test_a_scale_below_zero_is_zero_under_the_linear_code_only(eager_bench: Any, code: ScaleCode) -> None:
    bench, slot = eager_bench, eager_bench.tools.quantized_linear
    given = np.array([1, 128, 255, 0], np.uint8)
    hosts = np.full(64, 0xF0, np.uint8), given, np.ones(1, np.float32), np.array(0.5, np.float32)
    codes, coded, group, offset = (bench.tools.storage.from_host(host) for host in hosts)
    scales = {"dynamic": dynamic_levels, "linear": linear_levels}[code]()[given].astype(np.float64) + 0.5
    assert (scales < 0).sum() == 2
    scales = np.maximum(scales, 0) if code == "linear" else scales
    got = slot.unpack(Packed(codes, coded, group, offset, (4, 32), 32, code))
    bench.close(got, scales[:, None] * np.tile([1.0, -1.0], 16), 1e-6)


@pytest.mark.parametrize(
    ("block", "absolute", "relative"), [(32, 0.067746, 0.189726), (64, 0.072798, 0.203339), (256, 0.080337, 0.226105)]
)
def test_gaussian_weights_lose_as_much_as_published(
    rng: Any, numpy_slot: Any, block: int, absolute: float, relative: float
) -> None:
    weight = rng.standard_normal((256, 1024)).astype(np.float32)
    error = np.abs(numpy_slot.unpack(numpy_slot.pack(weight, block=block, scales="float32")) - weight)
    assert error.mean() == pytest.approx(absolute, rel=0.01)
    assert (error / np.abs(weight)).mean() == pytest.approx(relative, rel=0.01)


@pytest.mark.parametrize("code", CODES)
def test_zeros_come_back_as_zeros(eager_bench: Any, code: ScaleCode) -> None:
    slot, weight = eager_bench.tools.quantized_linear, eager_bench.put(np.zeros((4, 20), np.float32))
    out = eager_bench.get(slot.unpack(slot.pack(weight, block=32, scales=code)))
    assert not out.any() and not np.isnan(out).any()


@pytest.mark.parametrize("scale", [1e-30, 1e30])
def test_the_scale_of_a_block_is_free(eager_bench: Any, normal: Any, scale: float) -> None:
    slot, weight = eager_bench.tools.quantized_linear, (normal(4, 16) * scale).astype(np.float32)
    out = eager_bench.get(slot.unpack(slot.pack(eager_bench.put(weight), block=32, scales="float32")))
    assert np.abs(out - weight).max() <= 0.16 * np.abs(weight).max()


def test_packed_products_equal_products_with_the_unpacked_weight(eager_bench: Any, normal: Any) -> None:
    bench = eager_bench
    slot, x, dy, bias = bench.tools.quantized_linear, normal(2, 3, 20), normal(2, 3, 6), normal(6)
    packed = slot.pack(bench.put(normal(6, 20)), block=32, scales="dynamic")
    weight = bench.get(slot.unpack(packed)).astype(np.float64)
    bench.close(slot.linear(bench.put(x), packed, bench.put(bias)), x @ weight.T + bias)
    bench.close(slot.linear(bench.put(x), packed, None), x @ weight.T)
    bench.close(slot.linear_vjp_input(bench.put(dy), packed), dy @ weight)
    for dtype in bench.halves:
        out = slot.linear(bench.put(x, dtype), packed, bench.put(bias, dtype))
        assert bench.tools.storage.dtype_of(out) == dtype
        assert bench.get(out) == pytest.approx(x @ weight.T + bias, abs=0.2)


def test_halves_are_packed_from_their_float32_values(eager_bench: Any, normal: Any) -> None:
    for dtype in eager_bench.halves:
        weight = eager_bench.put(normal(4, 20), dtype)
        packed = eager_bench.tools.quantized_linear.pack(weight, block=32, scales="float32")
        codes, scales = packed_by_hand(eager_bench.get(weight).astype(np.float32), 32)
        eager_bench.same(packed.codes, codes)
        eager_bench.same(packed.scales, scales)


@settings(max_examples=40, deadline=None)
@given(
    rows=st.integers(1, 9), columns=st.integers(1, 70), block=st.sampled_from([32, 64, 128]), seed=st.integers(0, 99)
)
def test_packing_what_was_unpacked_changes_nothing(
    numpy_slot: Any, rows: int, columns: int, block: int, seed: int
) -> None:
    weight = np.random.default_rng(seed).standard_normal((rows, columns)).astype(np.float32)
    once = numpy_slot.pack(weight, block=block, scales="float32")
    twice = numpy_slot.pack(numpy_slot.unpack(once), block=block, scales="float32")
    assert np.array_equal(once.codes, twice.codes) and np.array_equal(once.scales, twice.scales)


@pytest.fixture(scope="module")
def numpy_slot() -> Any:
    from turret.derived import DerivedQuantizedLinear
    from turret.spi.array_api import Hooks, required_from

    return DerivedQuantizedLinear(required_from(np, hooks=Hooks(quiet=lambda: np.errstate(all="ignore"))))
