"""Dropout: what it drops, what it leaves, and attention with dropped probabilities against its equations."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from turret.models import DecoderConfig, MiniConfig, build_model
from turret.nn import Init, dropout, dropping
from turret.nn.attention import CausalSelfAttention
from turret.nn.regularization import ROWS, dropped_attention
from turret.registry import OpenBackend
from turret.spi import ConfigError
from turret.tensor import Parameter, RandomStream, backward, no_grad, ops, tensor

RNG = np.random.default_rng(2)


def test_outside_of_dropping_nothing_changes(backend: OpenBackend) -> None:
    x = tensor(RNG.standard_normal((3, 4)).astype(np.float32))
    assert dropout(x, 0.5) is x
    with dropping(RandomStream(0)), dropping(None):
        assert dropout(x, 0.5) is x


def test_what_stays_is_divided_by_its_probability(backend: OpenBackend) -> None:
    x = Parameter(RNG.standard_normal((200, 50)).astype(np.float32))
    kept = RandomStream(4).bernoulli(0.75, 200, 50).numpy()
    with dropping(RandomStream(4)):
        y = dropout(x, 0.25)
    np.testing.assert_allclose(y.numpy(), np.where(kept, x.numpy() / 0.75, 0), rtol=1e-6)
    np.testing.assert_allclose(backward(y.sum())[x].numpy(), kept / 0.75, rtol=1e-6)


def _attended(q: np.ndarray, k: np.ndarray, v: np.ndarray, kept: np.ndarray, rate: float, scale: float) -> np.ndarray:
    """softmax(scale q k^T, causal) with the mask, in float64."""
    together = q.shape[2] // k.shape[2]
    k, v = (np.repeat(x, together, axis=2).astype(np.float64) for x in (k, v))
    scores = np.einsum("bthd,bshd->bhts", q.astype(np.float64), k) * scale
    scores = np.where(np.tril(np.ones(scores.shape[2:], bool)), scores, -np.inf)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    weights /= weights.sum(-1, keepdims=True)
    return np.einsum("bhts,bshd->bthd", np.where(kept, weights / (1 - rate), 0), v)


@pytest.mark.parametrize("linear_memory", [False, True])
def test_attention_drops_probabilities_and_not_values(backend: OpenBackend, linear_memory: bool) -> None:
    b, t, heads, groups, size, rate = 2, 11, 4, 2, 3, 0.3
    q = RNG.standard_normal((b, t, heads, size)).astype(np.float32)
    k, v = (RNG.standard_normal((b, t, groups, size)).astype(np.float32) for _ in range(2))
    kept = RandomStream(7).bernoulli(1 - rate, b, heads, t, t).numpy()
    parameters = [Parameter(x) for x in (q, k, v)]
    with dropping(RandomStream(7)):
        out = dropped_attention(*parameters, scale=0.5, rate=rate, linear_memory=linear_memory)
    np.testing.assert_allclose(out.numpy(), _attended(q, k, v, kept, rate, 0.5), rtol=2e-5, atol=2e-6)
    direction = RNG.standard_normal(out.shape)
    found = backward((out * tensor(direction.astype(np.float32))).sum())
    for place, parameter in enumerate(parameters):
        step = RNG.standard_normal(parameter.shape)
        ends = []
        for sign in (1, -1):
            moved = [x.astype(np.float64) for x in (q, k, v)]
            moved[place] = moved[place] + sign * 1e-5 * step
            ends.append((_attended(*moved, kept, rate, 0.5) * direction).sum())
        assert (found[parameter].numpy() * step).sum() == pytest.approx((ends[0] - ends[1]) / 2e-5, rel=1e-3, abs=1e-3)


def test_both_forms_of_attention_drop_the_same(backend: OpenBackend) -> None:
    """Masks are drawn for a few rows at a time, whichever way, so that a resumed run may change the form."""
    q, k, v = (tensor(RNG.standard_normal((1, 2 * ROWS + 3, 2, 2)).astype(np.float32)) for _ in range(3))
    outs = []
    for linear_memory in (False, True):
        stream = RandomStream(1)
        with dropping(stream):
            outs.append(dropped_attention(q, k, v, scale=1.0, rate=0.5, linear_memory=linear_memory).numpy())
        assert stream.counter == 3
    np.testing.assert_allclose(*outs, rtol=2e-5, atol=2e-6)


def test_dropped_attention_outside_of_dropping_is_refused(backend: OpenBackend) -> None:
    q = tensor(np.ones((1, 3, 1, 2), np.float32))
    with pytest.raises(ConfigError, match="outside of `dropping`"):
        dropped_attention(q, q, q, scale=1.0, rate=0.5, linear_memory=True)


@pytest.mark.parametrize("rate", [-0.1, 1.0, math.nan, "a", None])
def test_dropout_refuses_a_rate_out_of_range_and_draws_nothing(backend: OpenBackend, rate: Any) -> None:
    stream, x = RandomStream(0), tensor(np.ones(3, np.float32))
    with dropping(stream), pytest.raises(ConfigError, match="below 1"):
        dropout(x, rate)
    assert stream.counter == 0


@pytest.mark.parametrize("stream", ["x", 0, np.random.default_rng(0)])
def test_dropping_wants_a_stream(stream: Any) -> None:
    with pytest.raises(ConfigError, match=r"wanted a turret\.tensor\.RandomStream"), dropping(stream):
        pass


@pytest.mark.parametrize("form", ["materialized", "flash"])
def test_attention_without_dropping_is_the_native_slot(backend: OpenBackend, form: str) -> None:
    layer = CausalSelfAttention(8, 2, init=Init(0))
    layer.form, layer.dropout = form, 0.5
    x = tensor(RNG.standard_normal((1, 5, 8)).astype(np.float32))
    first = layer(x).numpy()
    np.testing.assert_array_equal(layer(x).numpy(), first)


@pytest.mark.parametrize("checkpointing", ["none", "block"])
@pytest.mark.parametrize("form", ["materialized", "flash"])
@pytest.mark.parametrize("family", [DecoderConfig, MiniConfig])
def test_a_dropping_model_has_the_same_bits_with_checkpointing(
    backend: OpenBackend, family: type[DecoderConfig], form: str, checkpointing: str
) -> None:
    config = family(vocabulary=31, context=9, width=16, heads=4, kv_heads=2, blocks=2, feed_forward=24)
    ids = RNG.integers(0, 31, (2, 9), dtype=np.int32)
    results = []
    for word in ("none", checkpointing):
        model = build_model(config, seed=1).save_memory(attention=form, checkpointing=word)
        model.regularize(attention=0.2, residual=0.3, embedding=0.1)
        with dropping(RandomStream(5)):
            loss = ops.cross_entropy(model(tensor(ids)), tensor(ids))
        found = backward(loss)  # outside of `dropping`: the second run remembers it
        results.append([loss.numpy(), *(found[p].numpy() for p in model.parameters())])
    for one, other in zip(*results, strict=True):
        assert one.tobytes() == other.tobytes()


def test_a_model_that_is_asked_drops_nothing(backend: OpenBackend) -> None:
    config = DecoderConfig(vocabulary=31, context=9, width=16)
    ids = tensor(RNG.integers(0, 31, (2, 9), dtype=np.int32))
    with no_grad():
        plain = build_model(config, seed=1)(ids).numpy()
        rated = build_model(config, seed=1).regularize(attention=0.5, residual=0.5, embedding=0.5)
        np.testing.assert_array_equal(rated(ids).numpy(), plain)
        with dropping(RandomStream(0)):
            assert not np.allclose(rated(ids).numpy(), plain)


@pytest.mark.parametrize("kind", ["attention", "residual", "embedding"])
@pytest.mark.parametrize("rate", [-0.1, 1.0, math.nan, "0.1", True])
def test_a_rate_out_of_range_is_refused_before_anything_changes(backend: OpenBackend, kind: str, rate: object) -> None:
    model = build_model(DecoderConfig(vocabulary=31), seed=1)
    with pytest.raises(ConfigError, match=f"{kind} dropout .*below 1"):
        model.regularize(**{"residual": 0.5, kind: rate})  # type: ignore[arg-type]
    assert [block.dropout for block in model.blocks] == [0.0, 0.0]  # type: ignore[attr-defined]


def test_each_kind_reaches_its_layers(plain: OpenBackend) -> None:
    model = build_model(DecoderConfig(vocabulary=31, context=4), seed=1)
    ids = tensor(np.zeros((1, 4), np.int32))
    counts: dict[str, int] = {}
    for kind in ("attention", "residual", "embedding"):
        stream = RandomStream(0)
        model.regularize(**{kind: 0.5})
        with dropping(stream), no_grad():
            model(ids)
        counts[kind] = stream.counter
    assert counts == {"attention": 2, "residual": 4, "embedding": 1}
