"""NF4 weights: the bytes of the composed slot, products in float64, and never the whole of a large weight."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, get_args

import numpy as np
import pytest

from turret.derived import fill
from turret.derived.quantized_linear import DerivedQuantizedLinear
from turret.spi import Packed, ScaleCode, Toolset
from turret_tpu import nf4
from turret_tpu.backend import TpuBackend
from turret_tpu.library import jax

X = jax.Array
CODES: tuple[ScaleCode, ...] = get_args(ScaleCode)
SHAPES = [((33,), 32), ((96, 100), 32), ((7, 11, 13), 64), ((64, 65), 4096), ((130, 65), 128), ((1, 1), 32)]


@pytest.fixture(scope="module")
def tools(backend: TpuBackend) -> Toolset[Any]:
    return fill(backend.capabilities())


@pytest.fixture(scope="module")
def composed(backend: TpuBackend) -> DerivedQuantizedLinear[X]:
    return DerivedQuantizedLinear(backend.capabilities().required)


def normal(tools: Toolset[Any], *shape: int, dtype: Any = None) -> X:
    host = np.random.default_rng(sum(shape)).standard_normal(shape).astype(np.float32)
    placed: X = tools.storage.from_host(host, dtype=dtype)
    return placed


def bits(x: X | None) -> Any:
    return None if x is None else (x.shape, x.dtype, np.asarray(x).tobytes())


def fields(packed: Packed[X]) -> Any:
    arrays = packed.codes, packed.scales, packed.group_scales, packed.offset
    return *map(bits, arrays), packed.shape, packed.block, packed.scale_code


@pytest.mark.parametrize("scales", CODES)
@pytest.mark.parametrize(("shape", "block"), SHAPES, ids=str)
def test_bytes_and_values_are_those_of_the_composed_slot(
    tools: Toolset[Any], composed: DerivedQuantizedLinear[X], shape: tuple[int, ...], block: int, scales: ScaleCode
) -> None:
    slot, weight = tools.quantized_linear, normal(tools, *shape)
    packed = slot.pack(weight, block=block, scales=scales)
    assert fields(packed) == fields(composed.pack(weight, block=block, scales=scales))
    assert bits(slot.unpack(packed)) == bits(composed.unpack(packed))


@pytest.mark.parametrize("scales", CODES)
def test_a_captured_program_unpacks_the_same_bits(tools: Toolset[Any], scales: ScaleCode) -> None:
    slot = tools.quantized_linear
    packed = slot.pack(normal(tools, 300, 77), block=32, scales=scales)
    program = tools.compile.compile(lambda _: (slot.unpack(packed),))
    assert bits(program(packed.codes)[0]) == bits(slot.unpack(packed))


def test_zeros_stay_zeros_and_a_negative_scale_of_the_linear_code_is_none(tools: Toolset[Any]) -> None:
    slot = tools.quantized_linear
    weight = np.zeros((20, 64), np.float32)
    weight[3], weight[5] = 1e-3, 9.0
    back = slot.unpack(slot.pack(tools.storage.from_host(weight), block=32, scales="linear"))
    got = tools.storage.to_host(back)
    assert np.isfinite(got).all()
    assert not got[weight == 0].any()
    assert (got >= 0).all()


# inputs of which a chunk of whole blocks holds one output, several, or that make a chunk as large as the weight
CHUNKED = [((9, 64), 64), ((65, 100), 32), ((70, 33), 32), ((10, 31), 128), ((5, 1), 32), ((129, 96), 64)]


@pytest.mark.parametrize("biased", [True, False])
@pytest.mark.parametrize(("shape", "block"), CHUNKED, ids=str)
def test_products_of_chunks_are_right_in_float64(
    tools: Toolset[Any], monkeypatch: pytest.MonkeyPatch, shape: tuple[int, int], block: int, biased: bool
) -> None:
    monkeypatch.setattr(nf4, "CHUNK", 256)
    slot, (outs, ins) = tools.quantized_linear, shape
    packed = slot.pack(normal(tools, *shape), block=block, scales="dynamic")
    x, dy, bias = normal(tools, 2, 3, ins), normal(tools, 2, 3, outs), normal(tools, outs)
    weight, wide_x, wide_dy = (np.asarray(each).astype(np.float64) for each in (slot.unpack(packed), x, dy))
    want = wide_x @ weight.T + (np.asarray(bias) if biased else 0)
    got = tools.storage.to_host(slot.linear(x, packed, bias if biased else None))
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-4)
    got = tools.storage.to_host(slot.linear_vjp_input(dy, packed))
    np.testing.assert_allclose(got, wide_dy @ weight, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("half", ["float16", "bfloat16"])
def test_halves_meet_the_float32_weight_and_sum_in_float32(tools: Toolset[Any], half: Any) -> None:
    slot, storage = tools.quantized_linear, tools.storage
    # 4096 products of 1, which a half cannot count; and a level that is no half
    packed = slot.pack(storage.full((1, 4096), 1.0, dtype="float32"), block=64, scales="float32")
    y = slot.linear(storage.full((2, 4096), 1.0, dtype=half), packed, storage.full((1,), 0.0, dtype=half))
    assert storage.dtype_of(y) == half
    assert storage.to_host(y).tolist() == [[4096.0], [4096.0]]
    weight = storage.from_host(np.tile(np.array([1.0, 0.7229568362236023], np.float32), (1, 32)))
    packed = slot.pack(weight, block=64, scales="float32")
    chosen = storage.from_host(np.eye(64, dtype=np.float32)[1:2] * 1024, dtype=half)
    want = storage.to_host(storage.cast(storage.full((1, 1), 0.7229568362236023 * 1024, dtype="float32"), half))
    assert storage.to_host(slot.linear(chosen, packed, None)).tolist() == want.tolist()


@pytest.mark.parametrize("scales", CODES)
@pytest.mark.parametrize("count", [1, 64])
def test_a_large_weight_is_never_unpacked_whole(tools: Toolset[Any], count: int, scales: ScaleCode) -> None:
    outs, ins = 4096, 1024
    slot = tools.quantized_linear
    packed = slot.pack(normal(tools, outs, ins), block=64, scales=scales)
    products: list[tuple[Callable[..., X], int]] = [
        (lambda x: slot.linear(x, packed, None), ins),
        (lambda dy: slot.linear_vjp_input(dy, packed), outs),
    ]
    for product, width in products:
        found: Any = jax.jit(product).lower(normal(tools, count, width)).compile().memory_analysis()
        results = 4 * count * (outs + ins)
        assert found.temp_size_in_bytes < 4 * outs * ins / 8 + 2 * results


def test_a_weight_without_elements_is_composed_and_counted(backend: TpuBackend, tools: Toolset[Any]) -> None:
    slot, before = tools.quantized_linear, backend.derived_calls["quantized_linear"]
    packed = slot.pack(tools.storage.full((0, 8), 0.0, dtype="float32"), block=32, scales="float32")
    assert slot.unpack(packed).shape == (0, 8)
    assert slot.linear(normal(tools, 3, 8), packed, None).shape == (3, 0)
    assert backend.derived_calls["quantized_linear"] == before + 3
