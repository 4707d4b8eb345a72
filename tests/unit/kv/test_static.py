"""The static cache: decoding with it, captured or not, equals the full forward, and it refuses what does not fit."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from turret.generate import SamplingConfig
from turret.generate.decode import PREFILL, Decoding, generate_ids
from turret.kv import StaticCache
from turret.models import DecoderConfig, LanguageModel, MiniConfig, build_model
from turret.registry import OpenBackend, open_backend, use_backend
from turret.spi import ConfigError, DTypeError, GraphError, ShapeError
from turret.tensor import Tensor, capture, no_grad, tensor

Array = npt.NDArray[Any]
COMPILING = ["tpu:cpu", "cuda:emulated"]
CONFIGS = {
    "decoder": DecoderConfig(vocabulary=27),
    "mini": MiniConfig(vocabulary=27, context=16, width=32),
}


def build(config: Any) -> LanguageModel:
    built = build_model(config, seed=3)
    built.load_state_dict({name: value * 8 for name, value in built.state_dict().items()})
    return built


@pytest.fixture(params=CONFIGS.values(), ids=CONFIGS.keys())
def model(backend: OpenBackend, request: pytest.FixtureRequest) -> LanguageModel:
    return build(request.param)


def cache_for(model: LanguageModel, batch: int, capacity: int = 16) -> StaticCache:
    return StaticCache(
        model.parameters()[0].backend,
        layers=model.blocks_count,
        batch=batch,
        capacity=capacity,
        kv_heads=model.kv_heads,
        head_size=model.head_size,
    )


def ids_of(*shape: int) -> Array:
    return np.random.default_rng(1).integers(0, 27, shape).astype(np.int32)


def pieces_of(step: Any, cache: StaticCache, ids: Array, cuts: list[int], backend: OpenBackend) -> Array:
    found, start = [], 0
    with no_grad():
        for count in cuts:
            cache.begin(count)
            found.append(step(tensor(ids[:, start : start + count], backend=backend)).numpy())
            start += count
            assert cache.length == start
    return np.concatenate(found, 1)


@pytest.mark.parametrize("cuts", [[16], [1] * 16, [9, 1, 1, 1, 4]], ids=str)
def test_decoding_in_pieces_equals_the_full_forward(model: LanguageModel, cuts: list[int]) -> None:
    ids, cache = ids_of(3, 16), cache_for(model, 3)
    backend = model.parameters()[0].backend
    with no_grad():
        full = model(tensor(ids)).numpy()
    for _ in range(2):
        pieces = pieces_of(lambda rows: model(rows, cache), cache, ids, cuts, backend)
        np.testing.assert_allclose(pieces, full, rtol=1e-4, atol=1e-4 * np.abs(full).max())
        cache.reset()


@pytest.mark.parametrize("spec", COMPILING)
@pytest.mark.parametrize("family", CONFIGS)
def test_a_captured_step_decodes_in_one_program_a_count(family: str, spec: str) -> None:
    device = open_backend(spec)
    with use_backend(device):
        model = build(CONFIGS[family])
    ids, cache = ids_of(2, 16), cache_for(model, 2)
    with no_grad():
        full = model(tensor(ids, backend=device)).numpy()
    step = capture(lambda rows: model(rows, cache), state=[model, cache])
    for _ in range(2):
        pieces = pieces_of(step, cache, ids, [4, 4, *[1] * 8], device)
        np.testing.assert_allclose(pieces, full, rtol=1e-4, atol=1e-4 * np.abs(full).max())
        cache.reset()
    assert step.compiles == 2


@pytest.mark.parametrize("spec", COMPILING)
def test_generated_tokens_are_those_of_a_backend_that_does_not_compile(backend: OpenBackend, spec: str) -> None:
    config = DecoderConfig(vocabulary=27, context=48)
    here = build(config)
    with use_backend(spec):
        there = build(config)
    prompt = ids_of(1, PREFILL + 3)[0].tolist()
    first, second = (
        [token for token, _ in zip(generate_ids(m, prompt, SamplingConfig(temperature=0.0)), range(30), strict=False)]
        for m in (here, there)
    )
    assert first == second  # 35 + 30 tokens: the context of 48 overflows and is replayed
    decoding = Decoding(there)
    for _ in range(3):
        decoding.push(prompt)
    assert decoding._step is not None and decoding._step.compiles == 2


def test_tokens_past_the_capacity_are_refused_and_forgotten(model: LanguageModel) -> None:
    cache = cache_for(model, 1, capacity=8)
    cache.begin(6)
    with no_grad():
        model(tensor(ids_of(1, 6)), cache)
    with pytest.raises(ShapeError, match=r"a cache of 8 tokens holds 6 and got 3 more; reset it and replay"):
        cache.begin(3)
    assert cache.length == 6
    with pytest.raises(ConfigError, match="a step of 0 tokens"):
        cache.begin(0)


def test_a_step_of_another_count_than_it_began_is_refused(model: LanguageModel) -> None:
    cache = cache_for(model, 1)
    cache.begin(3)
    with no_grad(), pytest.raises(ShapeError, match=r"a step of 2 tokens after begin\(3\)"):
        cache.advance(2)
    assert cache.length == 0


def test_what_does_not_fit_is_refused(backend: OpenBackend) -> None:
    cache = StaticCache(backend, layers=1, batch=2, capacity=4, kv_heads=3, head_size=2)
    layer = cache.layers[0]
    cache.begin(1)

    def rows(*shape: int, dtype: Any = "float32") -> Tensor:
        return tensor(np.zeros(shape), dtype=dtype, backend=backend)

    q = rows(2, 1, 3, 2)
    with pytest.raises(GraphError, match="no gradient"):
        layer.attend(q, rows(2, 1, 3, 2), rows(2, 1, 3, 2), scale=1.0)
    with no_grad():
        with pytest.raises(ShapeError, match=r"wanted \(2, T, 3, 2\)"):
            layer.attend(q, rows(1, 1, 3, 2), rows(1, 1, 3, 2), scale=1.0)
        with pytest.raises(DTypeError, match="a cache of float32 got keys of float64"):
            layer.attend(q, rows(2, 1, 3, 2, dtype="float64"), rows(2, 1, 3, 2, dtype="float64"), scale=1.0)
    with pytest.raises(ConfigError, match="batch 0"):
        StaticCache(backend, layers=1, batch=0, capacity=4, kv_heads=3, head_size=2)
