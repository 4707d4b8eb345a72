"""What each wrong reading or coding of packed weights gets wrong, and that it is right elsewhere."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from turret.spi import Packed, ScaleCode, Toolset

Wrong = Callable[[str], Toolset[Any]]
CODES: tuple[ScaleCode, ...] = ("float32", "dynamic", "linear")


def normal(*shape: int) -> Any:
    return np.random.default_rng(0).standard_normal(shape).astype(np.float32)


def readings(tools: Toolset[Any], packed: Packed[Any]) -> list[Any]:
    """Through every method that reads a packed weight, the weight."""
    slot, (outs, ins) = tools.quantized_linear, packed.shape
    one = slot.linear(np.eye(ins, dtype=np.float32), packed, None).T
    return [slot.unpack(packed), one, slot.linear_vjp_input(np.eye(outs, dtype=np.float32), packed)]


def agree(tools: Toolset[Any], good: Toolset[Any], packed: Packed[Any]) -> bool:
    """Whether a weight is read right; all methods have to be of one opinion."""
    want = good.quantized_linear.unpack(packed)
    found = {bool(np.allclose(each, want, rtol=1e-4, atol=1e-6)) for each in readings(tools, packed)}
    assert len(found) == 1
    return found.pop()


def below_zero(good: Toolset[Any], code: ScaleCode) -> Packed[Any]:
    packed = good.quantized_linear.pack(normal(2, 32), block=32, scales=code)
    return dataclasses.replace(
        packed,
        scales=np.array([1, 255], np.uint8),
        group_scales=np.ones(1, np.float32),
        offset=np.array(0.5, np.float32),
    )


def test_only_a_linear_scale_below_zero_is_read_wrong(wrong: Wrong, good: Toolset[Any]) -> None:
    tools = wrong("nf4-linear-scale-not-clamped")
    assert not agree(tools, good, below_zero(good, "linear"))
    assert agree(tools, good, below_zero(good, "dynamic"))
    for code in CODES:
        assert agree(tools, good, good.quantized_linear.pack(normal(9, 40), block=32, scales=code))


@pytest.mark.parametrize("name", ["nf4-scale-tables-exchanged", "nf4-low-nibble-first"])
def test_what_it_packed_itself_comes_back_right(wrong: Wrong, good: Toolset[Any], name: str) -> None:
    tools, weight = wrong(name), normal(9, 40)
    for code in CODES:
        mine, theirs = (each.quantized_linear.pack(weight, block=32, scales=code) for each in (tools, good))
        assert mine.scale_code == code
        back = tools.quantized_linear.unpack(mine)
        assert np.abs(back - weight).max() < 0.2 * np.abs(weight).max()
        is_same = code == "float32" and "tables" in name
        assert agree(tools, good, theirs) is is_same
        assert (np.array_equal(mine.codes, theirs.codes) and np.array_equal(mine.scales, theirs.scales)) is is_same


def test_linear_scales_get_dynamic_codes(wrong: Wrong, good: Toolset[Any]) -> None:
    tools, weight = wrong("nf4-scale-code-ignored-on-pack"), normal(9, 40)
    packed = {code: good.quantized_linear.pack(weight, block=32, scales=code) for code in CODES}
    for code in CODES:
        got = tools.quantized_linear.pack(weight, block=32, scales=code)
        assert got.scale_code == code
        assert np.array_equal(got.scales, packed["dynamic" if code == "linear" else code].scales)
        assert agree(tools, good, packed[code])


@pytest.mark.parametrize("code", CODES)
def test_scales_are_coded_with_the_level_below(wrong: Wrong, good: Toolset[Any], code: ScaleCode) -> None:
    tools, weight = wrong("nf4-scales-rounded-down"), normal(30, 40)
    got, want = (each.quantized_linear.pack(weight, block=32, scales=code) for each in (tools, good))
    assert np.array_equal(got.codes, want.codes)
    if code == "float32":
        assert np.array_equal(got.scales, want.scales)
    else:
        lower = want.scales.astype(int) - got.scales
        assert set(lower.tolist()) == {0, 1}


@pytest.mark.parametrize(
    ("name", "blocks", "read_right"),
    [
        ("nf4-groups-of-255-scales", 255, True),
        ("nf4-groups-of-255-scales", 257, False),
        ("nf4-every-group-reads-the-first", 256, True),
        ("nf4-every-group-reads-the-first", 257, False),
    ],
)
@pytest.mark.parametrize("code", CODES)
def test_scales_of_a_later_group_are_read_wrong(
    wrong: Wrong, good: Toolset[Any], name: str, blocks: int, read_right: bool, code: ScaleCode
) -> None:
    weight = normal(blocks, 32)
    weight[256:] *= 5
    packed = good.quantized_linear.pack(weight, block=32, scales=code)
    assert agree(wrong(name), good, packed) is (read_right or code == "float32")


def test_the_last_of_an_odd_number_is_another(wrong: Wrong, good: Toolset[Any]) -> None:
    tools = wrong("nf4-odd-last-value-from-low-nibble")
    for shape, is_right in (((3, 33), False), ((4, 33), True)):
        assert agree(tools, good, good.quantized_linear.pack(normal(*shape), block=32, scales="float32")) is is_right


def test_the_gradient_of_a_square_weight_is_its_product(wrong: Wrong, good: Toolset[Any]) -> None:
    slot = wrong("nf4-gradient-with-weight-not-transposed").quantized_linear
    for shape, is_right in (((40, 40), False), ((40, 33), True)):
        packed, dy = good.quantized_linear.pack(normal(*shape), block=32, scales="linear"), normal(5, 40)
        want = good.quantized_linear.linear_vjp_input(dy, packed)
        assert np.allclose(slot.linear_vjp_input(dy, packed), want, atol=1e-5) is is_right
