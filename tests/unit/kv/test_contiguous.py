"""The contiguous cache: decoding with it equals the full forward, and it refuses what does not fit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from turret.kv import ContiguousCache
from turret.models import DecoderConfig, LanguageModel, MiniConfig, build_model
from turret.registry import OpenBackend, use_backend
from turret.spi import BackendMismatch, ConfigError, DTypeError, GraphError, ShapeError
from turret.tensor import Tensor, no_grad, tensor

Array = npt.NDArray[Any]
CONFIGS = {
    "decoder": DecoderConfig(vocabulary=27),
    "decoder-grouped": DecoderConfig(vocabulary=27, kv_heads=2),
    "mini": MiniConfig(vocabulary=27, context=16, width=32),
}


@pytest.fixture(params=CONFIGS.values(), ids=CONFIGS.keys())
def model(backend: OpenBackend, request: pytest.FixtureRequest) -> LanguageModel:
    built = build_model(request.param, seed=3)
    built.load_state_dict({name: value * 8 for name, value in built.state_dict().items()})
    return built


def cache_for(model: LanguageModel, batch: int, capacity: int = 16) -> ContiguousCache:
    return ContiguousCache(
        model.parameters()[0].backend,
        layers=model.blocks_count,
        batch=batch,
        capacity=capacity,
        kv_heads=model.kv_heads,
        head_size=model.head_size,
    )


def ids_of(*shape: int) -> Array:
    return np.random.default_rng(1).integers(0, 27, shape).astype(np.int32)


@pytest.mark.parametrize("cuts", [[16], [1] * 16, [9, 1, 1, 1, 4], [1, 7, 8], [15, 1]], ids=str)
def test_decoding_in_pieces_equals_the_full_forward(model: LanguageModel, cuts: list[int]) -> None:
    ids, cache, pieces, start = ids_of(3, 16), cache_for(model, 3), [], 0
    with no_grad():
        full = model(tensor(ids)).numpy()
        for count in cuts:
            pieces.append(model(tensor(ids[:, start : start + count]), cache).numpy())
            start += count
            assert cache.length == start
    np.testing.assert_allclose(np.concatenate(pieces, 1), full, rtol=1e-4, atol=1e-4 * np.abs(full).max())


def test_last_gives_the_last_logits_and_fills_the_cache_alike(model: LanguageModel) -> None:
    ids = ids_of(2, 9)
    with no_grad():
        full, cache = model(tensor(ids)).numpy(), cache_for(model, 2)
        last = model(tensor(ids[:, :8]), cache, last=True).numpy()
        following = model(tensor(ids[:, 8:]), cache, last=True).numpy()
    np.testing.assert_allclose(np.concatenate([last, following], 1), full[:, 7:], rtol=1e-4, atol=1e-4)


def test_a_reset_cache_is_as_good_as_new(model: LanguageModel) -> None:
    ids, cache = ids_of(2, 12), cache_for(model, 2)
    with no_grad():
        model(tensor(ids), cache)
        cache.reset()
        assert cache.length == 0
        again = model(tensor(ids[:, 4:]), cache).numpy()
        np.testing.assert_array_equal(again, model(tensor(ids[:, 4:]), cache_for(model, 2)).numpy())


def test_logits_already_given_do_not_change_afterwards(model: LanguageModel) -> None:
    cache = cache_for(model, 1)
    with no_grad():
        first = model(tensor(ids_of(1, 4)), cache)
        before = first.numpy()
        for _ in range(3):
            model(tensor(ids_of(1, 4)), cache)
    np.testing.assert_array_equal(first.numpy(), before)


def test_tokens_past_context_or_capacity_are_refused_and_forgotten(model: LanguageModel) -> None:
    ids = ids_of(1, 16)
    with no_grad():
        large, small = cache_for(model, 1, capacity=32), cache_for(model, 1, capacity=8)
        model(tensor(ids[:, :15]), large)
        with pytest.raises(ShapeError, match=r"17 tokens pass the context of 16.*reset the cache"):
            model(tensor(ids[:, :2]), large)
        model(tensor(ids[:, :6]), small)
        with pytest.raises(ShapeError, match=r"a cache of 8 tokens holds 6 and got 3 more"):
            model(tensor(ids[:, 6:9]), small)
        assert (large.length, small.length) == (15, 6)
        rest = model(tensor(ids[:, 6:8]), small).numpy()  # the refused step left nothing behind
        full = model(tensor(ids[:, :8])).numpy()[:, 6:]
    np.testing.assert_allclose(rest, full, rtol=1e-4, atol=1e-4 * np.abs(full).max())


def test_a_cache_of_another_depth_or_batch_is_refused(model: LanguageModel) -> None:
    backend = model.parameters()[0].backend
    deep = ContiguousCache(backend, layers=3, batch=1, capacity=16, kv_heads=model.kv_heads, head_size=model.head_size)
    with no_grad():
        with pytest.raises(ShapeError, match=r"cache of 3 layers for a model of 2 blocks"):
            model(tensor(ids_of(1, 2)), deep)
        with pytest.raises(ShapeError, match=r"got keys \(2, 2, .*wanted \(1, T, "):
            model(tensor(ids_of(2, 2)), cache_for(model, 1))


def test_a_cache_is_no_part_of_a_graph(model: LanguageModel) -> None:
    with pytest.raises(GraphError, match=r"no gradient; run the model under no_grad\(\)"):
        model(tensor(ids_of(1, 2)), cache_for(model, 1))


def small(backend: OpenBackend, **sizes: int) -> ContiguousCache:
    return ContiguousCache(backend, **{"layers": 1, "batch": 2, "capacity": 4, "kv_heads": 3, "head_size": 2} | sizes)


def part(*shape: int) -> Tensor:
    return tensor(np.ones(shape, np.float32))


def test_a_layer_returns_all_it_has_seen_and_shows_it_after_advance(backend: OpenBackend) -> None:
    cache, random = small(backend), np.random.default_rng(0)
    (layer,) = cache.layers
    k, v = (random.normal(size=(2, 4, 3, 2)).astype(np.float32) for _ in range(2))
    with no_grad():
        first = layer.append(tensor(k[:, :3]), tensor(v[:, :3]))
        assert layer.length == cache.length == 0
        cache.advance(3)
        second = layer.append(tensor(k[:, 3:]), tensor(v[:, 3:]))
    assert first[0].numpy().tolist() == k[:, :3].tolist()
    assert second[0].numpy().tolist() == k.tolist()
    assert second[1].numpy().tolist() == v.tolist()
    with pytest.raises(ShapeError, match="holds 3 and got 2 more"):
        cache.advance(2)
    assert cache.length == 3


def test_tokens_past_the_capacity_never_reach_the_next_sequence(backend: OpenBackend) -> None:
    cache = small(backend)
    (layer,) = cache.layers
    with no_grad():
        layer.append(part(2, 3, 3, 2), part(2, 3, 3, 2))
        cache.advance(3)
        twos = part(2, 2, 3, 2) * 2.0
        with pytest.raises(ShapeError, match="a cache of 4 tokens holds 3 and got 2 more"):
            layer.append(twos, twos)
        kept, _ = layer.append(part(2, 1, 3, 2), part(2, 1, 3, 2))
    assert (kept.numpy() == 1).all()


def test_keys_that_do_not_fit_are_refused(plain: OpenBackend, make_backend: Callable[..., OpenBackend]) -> None:
    (layer,) = small(plain).layers
    good = part(2, 1, 3, 2)
    with use_backend(make_backend(name="other")):
        foreign = part(2, 1, 3, 2)
    with no_grad():
        for k, v in ((part(2, 1, 3, 3), part(2, 1, 3, 3)), (good, part(2, 2, 3, 2)), (part(2, 3, 2), part(2, 3, 2))):
            with pytest.raises(ShapeError, match=r"wanted \(2, T, 3, 2\)"):
                layer.append(k, v)
        with pytest.raises(BackendMismatch, match=r"plain.*other"):
            layer.append(foreign, foreign)
        with pytest.raises(DTypeError, match=r"float32 got keys of float64"):
            layer.append(good.cast("float64"), good.cast("float64"))
        with pytest.raises(DTypeError, match="ndarray"):
            layer.append(good.numpy(), good.numpy())  # type: ignore[arg-type]


@pytest.mark.parametrize("what", ["layers", "batch", "capacity", "kv_heads", "head_size"])
def test_empty_caches_are_refused(plain: OpenBackend, what: str) -> None:
    with pytest.raises(ConfigError, match=rf"{what} 0; wanted at least 1"):
        small(plain, **{what: 0})
