"""Packed weights: bytes against the published construction, losses against published ones, products against float64."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from nf4_formulas import (
    CODES,
    LEVELS,
    Draw,
    X,
    close,
    decoded,
    dynamic_map,
    in_blocks,
    linear_levels,
    made,
    nearest,
    published,
    scale_levels,
)

from turret.derived import DerivedQuantizedLinear
from turret.spi import ScaleCode
from turret_cpu.backend import CpuBackend
from turret_cpu.kernels import nf4
from turret_cpu.quantized_linear import FEW, CpuQuantizedLinear
from turret_cpu.threads import POOL

BLOCKS = [32, 64, 128, 256, 512, 1024, 2048, 4096]
BACKEND = CpuBackend()  # for hypothesis, which takes no fixtures
# Block size: the mean of |error| with float32, dynamic and linear scales, and of |error / weight| with the first, over
# weights from N(0, 1); then the deviations of both for one weight: those of a mean of n are smaller by the root of n.
LOSSES = {
    32: ((0.067746, 0.067867, 0.067827), 0.189726, 0.066, 0.31),
    64: ((0.072798, 0.072838, 0.072817), 0.203339, 0.078, 0.36),
    128: ((0.076831, 0.076874, 0.076862), 0.215237, 0.092, 0.41),
    256: ((0.080337, 0.080372, 0.080364), 0.226105, 0.11, 0.41),
    4096: ((0.092547, 0.092451, 0.092453), 0.262473, 0.37, 1.05),
}


@pytest.fixture
def slot(backend: CpuBackend) -> CpuQuantizedLinear:
    return native(backend)


def native(backend: CpuBackend) -> CpuQuantizedLinear:
    found = backend.capabilities().quantized_linear
    assert isinstance(found, CpuQuantizedLinear)
    return found


def test_levels_and_tables_are_those_of_the_format() -> None:
    assert np.array_equal(nf4.LEVELS, LEVELS)
    dynamic, linear = (nf4.TABLES[code][:256] for code in CODES[1:])
    assert np.array_equal(dynamic, dynamic_map()) and np.array_equal(linear, linear_levels())
    assert dynamic[127] == 0 and dynamic[255] == 1
    assert dynamic[0] == np.float32(-0.99296874) and dynamic[128] == np.float32(5.500000384017767e-07)
    assert linear[128] == 0 and linear[255] == 1 and linear[1] == -1 and linear[0] == np.float32(-128 / 127)


def test_known_bytes(slot: CpuQuantizedLinear) -> None:
    weight = np.concatenate([LEVELS, LEVELS[::-1], 3 * LEVELS[:3]]).reshape(5, 7)
    packed = slot.pack(weight, block=32, scales="float32")
    assert packed.codes.tobytes().hex() == "0123456789abcdeffedcba9876543210" + "0127"
    assert packed.scales.tolist() == [1, 3]
    assert np.array_equal(slot.unpack(packed), weight)


@pytest.mark.parametrize("block", BLOCKS)
@pytest.mark.parametrize("shape", [(1,), (33,), (5, 7), (31, 33), (3, 5, 7), (96, 100), (65, 130), (4097,)])
def test_bytes_and_scales_are_those_of_the_format_bit_for_bit(
    backend: CpuBackend, draw: Draw, block: int, shape: tuple[int, ...]
) -> None:
    slot, derived = native(backend), DerivedQuantizedLinear(backend.capabilities().required)
    weight = made(draw, *shape)
    codes, scales = published(weight, block)
    for code in CODES:
        packed, same = (each.pack(weight, block=block, scales=code) for each in (slot, derived))
        assert np.array_equal(packed.codes, codes) and packed.codes.dtype == np.uint8
        assert (packed.shape, packed.block, packed.scale_code) == (shape, block, code)
        if packed.offset is None or packed.group_scales is None:
            assert code == "float32" and np.array_equal(packed.scales, scales) and packed.scales.dtype == np.float32
        else:
            assert float(packed.offset) == pytest.approx(scales.astype(np.float64).mean(), rel=1e-6)
            units, groups = in_blocks(scales - packed.offset, 256)
            assert np.array_equal(packed.scales, nearest(units, scale_levels(code)).astype(np.uint8))
            assert np.array_equal(packed.group_scales, groups)
        for field in ("codes", "scales", "group_scales", "offset"):
            ours, theirs = getattr(packed, field), getattr(same, field)
            assert (ours is None) == (theirs is None)
            assert ours is None or (ours.dtype == theirs.dtype and np.array_equal(ours, theirs))
        assert np.array_equal(slot.unpack(packed), derived.unpack(packed))
        assert np.allclose(slot.unpack(packed), decoded(packed), rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("code", CODES)
@pytest.mark.parametrize("block", sorted(LOSSES))
def test_gaussian_weights_lose_no_more_than_published(
    slot: CpuQuantizedLinear, draw: Draw, block: int, code: ScaleCode
) -> None:
    weight = made(draw, 512, 1024)
    error = np.abs(slot.unpack(slot.pack(weight, block=block, scales=code)).astype(np.float64) - weight)
    means, relative, spread, relative_spread = LOSSES[block]
    absolute, root = means[CODES.index(code)], weight.size**0.5
    assert abs(error.mean() - absolute) <= 7 * spread / root + 5e-4 * absolute
    if code == "float32":
        assert abs((error / np.abs(weight)).mean() - relative) <= 7 * relative_spread / root + 5e-4 * relative


@pytest.mark.parametrize("code", CODES)
@pytest.mark.parametrize(
    ("outs", "ins", "block"),
    [(1, 1, 32), (3, 65, 64), (5, 7, 32), (33, 64, 64), (64, 130, 128), (130, 576, 32), (130, 576, 64), (9, 4097, 4096),
     (257, 640, 256), (2, 9216, 1024), (3, 33_024, 64), (9, 12_800, 32)],
)  # fmt: skip
def test_products_of_any_number_of_rows_follow_the_formula(
    slot: CpuQuantizedLinear, draw: Draw, outs: int, ins: int, block: int, code: ScaleCode
) -> None:
    packed = slot.pack(made(draw, outs, ins), block=block, scales=code)
    weight, bias = decoded(packed), made(draw, outs)
    for rows in (1, 2, 3, 4, 5, 7, 8, 9, 16, FEW, FEW + 1, 100):
        x, dy = made(draw, rows, ins), made(draw, rows, outs)
        close(slot.linear(x, packed, bias), x, weight.T, bias)
        close(slot.linear(x, packed, None), x, weight.T)
        close(slot.linear_vjp_input(dy, packed), dy, weight)


@settings(max_examples=60, deadline=None)
@given(
    shape=st.tuples(st.integers(1, 40), st.one_of(st.integers(1, 200), st.sampled_from([64, 128, 192, 1024]))),
    rows=st.integers(1, 60),
    block=st.sampled_from(BLOCKS),
    code=st.sampled_from(CODES),
    seed=st.integers(0, 99),
)
def test_products_of_any_shape_follow_the_formula(
    shape: tuple[int, int], rows: int, block: int, code: ScaleCode, seed: int
) -> None:
    draw, slot = np.random.default_rng(seed), native(BACKEND)
    packed = slot.pack(made(draw, *shape), block=block, scales=code)
    x, dy = made(draw, rows, shape[1]), made(draw, rows, shape[0])
    close(slot.linear(x, packed, None), x, decoded(packed).T)
    close(slot.linear_vjp_input(dy, packed), dy, decoded(packed))


def test_the_gradient_agrees_with_finite_differences(
    slot: CpuQuantizedLinear, draw: Draw, slopes: Callable[..., list[X]]
) -> None:
    packed = slot.pack(made(draw, 6, 9), block=32, scales="dynamic")
    x, dy = draw.standard_normal((2, 3, 9)), made(draw, 2, 3, 6)
    (want,) = slopes(lambda a: a @ decoded(packed).T, [x], dy.astype(np.float64))
    assert np.abs(slot.linear_vjp_input(dy, packed) - want).max() < 1e-5


def views(x: X) -> dict[str, X]:
    """Equal values that lie otherwise in memory."""
    gaps = np.full(tuple(2 * size for size in x.shape), 255, x.dtype)
    gaps[tuple(slice(None, None, 2) for _ in x.shape)] = x
    raw = np.zeros(x.nbytes + 1, np.uint8)[1:].view(x.dtype).reshape(x.shape)
    raw[...] = x
    sealed = x.copy()
    sealed.setflags(write=False)
    return {
        "transposed": np.ascontiguousarray(x.T).T,
        "gaps": gaps[tuple(slice(None, None, 2) for _ in x.shape)],
        "backwards": np.ascontiguousarray(x[::-1])[::-1],
        "misaligned": raw,
        "sealed": sealed,
    }


@pytest.mark.parametrize("view", ["transposed", "gaps", "backwards", "misaligned", "sealed"])
def test_where_arrays_lie_does_not_change_a_bit(slot: CpuQuantizedLinear, draw: Draw, view: str) -> None:
    weight, x, dy = made(draw, 66, 130), made(draw, 5, 130), made(draw, 5, 66)
    packed = slot.pack(weight, block=32, scales="dynamic")
    assert packed.group_scales is not None
    moved = slot.pack(views(weight)[view], block=32, scales="dynamic")
    assert np.array_equal(moved.codes, packed.codes) and np.array_equal(moved.scales, packed.scales)
    parts: dict[str, Any] = {name: views(getattr(packed, name))[view] for name in ("codes", "scales", "group_scales")}
    elsewhere = dataclasses.replace(packed, **parts)
    before = [part.copy() for part in parts.values()]
    want = slot.unpack(packed), slot.linear(x, packed, None), slot.linear_vjp_input(dy, packed)
    got = (
        slot.unpack(elsewhere),
        slot.linear(views(x)[view], elsewhere, None),
        slot.linear_vjp_input(views(dy)[view], elsewhere),
    )
    assert all(np.array_equal(a, b) for a, b in zip(got, want, strict=True))
    assert all(np.array_equal(a, b) for a, b in zip(before, parts.values(), strict=True))


def test_bits_depend_neither_on_the_run_nor_on_the_number_of_threads(
    slot: CpuQuantizedLinear, draw: Draw, monkeypatch: pytest.MonkeyPatch
) -> None:
    weight = made(draw, 1023, 576)

    def everything() -> list[bytes]:
        draw = np.random.default_rng(5)
        packed = slot.pack(weight, block=64, scales="dynamic")
        results = [packed.codes, packed.scales, slot.unpack(packed)]
        for rows in (1, 3, 8, 9, 100):
            results.append(slot.linear(made(draw, rows, 576), packed, None))
            results.append(slot.linear_vjp_input(made(draw, rows, 1023), packed))
        return [x.tobytes() for x in results]

    want = everything()
    assert all(everything() == want for _ in range(3))
    monkeypatch.setattr(POOL, "parts", 1)
    assert everything() == want


def test_a_value_between_two_levels_takes_the_lower_one(slot: CpuQuantizedLinear) -> None:
    middles = (LEVELS[1:].astype(np.float64) + LEVELS[:-1]) / 2
    ties = np.flatnonzero(middles.astype(np.float32) == middles)  # those that float32 holds
    assert ties.size > 4
    weight = np.zeros(32, np.float32)
    weight[: ties.size], weight[31] = middles[ties], 1
    codes = slot.pack(4 * weight, block=32, scales="float32").codes
    assert np.stack([codes >> 4, codes & 15], 1).reshape(-1)[: ties.size].tolist() == ties.tolist()


@pytest.mark.parametrize("count", [1, 31, 33, 63, 64, 1023, 4095])
@pytest.mark.parametrize("block", [32, 64, 4096])
def test_what_lies_behind_the_last_weight_does_not_count(
    slot: CpuQuantizedLinear, draw: Draw, count: int, block: int
) -> None:
    inside = np.full(count + 4096, 1e30, np.float32)
    inside[:count] = made(draw, count)
    packed = slot.pack(inside[:count], block=block, scales="float32")
    codes, scales = published(inside[:count], block)
    assert np.array_equal(packed.codes, codes) and np.array_equal(packed.scales, scales)
