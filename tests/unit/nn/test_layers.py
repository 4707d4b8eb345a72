"""Layers against their formulas in float64, and what they refuse."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from turret.nn import (
    CausalSelfAttention,
    Embedding,
    FeedForward,
    GatedFeedForward,
    Init,
    LayerNorm,
    Linear,
    RMSNorm,
    Rotary,
)
from turret.registry import OpenBackend
from turret.spi import ConfigError, ShapeError
from turret.tensor import tensor

RANDOM = np.random.default_rng(5)


def host(*shape: int) -> Any:
    return RANDOM.normal(size=shape).astype(np.float32)


def shapes(module: Any) -> dict[str, tuple[int, ...]]:
    return {name: p.shape for name, p in module.named_parameters()}


def test_shapes_and_names_of_the_layers(plain: OpenBackend) -> None:
    init = Init(0)
    assert shapes(Linear(3, 5, init=init)) == {"weight": (5, 3), "bias": (5,)}
    assert shapes(Linear(3, 5, init=init, bias=False)) == {"weight": (5, 3)}
    assert shapes(Embedding(7, 3, init=init)) == {"weight": (7, 3)}
    assert shapes(LayerNorm(3, init=init)) == {"scale": (3,), "bias": (3,)}
    assert shapes(RMSNorm(3, init=init)) == {"scale": (3,)}
    assert list(shapes(FeedForward(4, 8, init=init))) == [
        "expand.weight",
        "expand.bias",
        "project.weight",
        "project.bias",
    ]
    assert list(shapes(GatedFeedForward(4, 8, init=init))) == ["gate.weight", "up.weight", "down.weight"]
    grouped = shapes(CausalSelfAttention(8, 4, init=init, kv_heads=2))
    assert (grouped["query.weight"], grouped["key.weight"], grouped["value.bias"]) == ((8, 8), (4, 8), (4,))
    assert shapes(Rotary(4, 2)) == {}


def test_linear_and_embedding(backend: OpenBackend) -> None:
    linear, x = Linear(3, 5, init=Init(0)), host(2, 4, 3)
    linear.bias.assign(tensor(host(5)).value)  # type: ignore[union-attr]
    w, b = (p.numpy().astype(np.float64) for p in linear.parameters())
    np.testing.assert_allclose(linear(tensor(x)).numpy(), x @ w.T + b, rtol=1e-5, atol=1e-6)
    table, ids = Embedding(7, 3, init=Init(0)), np.array([[0, 6], [3, 3]], np.int32)
    assert table(tensor(ids)).numpy().tolist() == table.weight.numpy()[ids].tolist()


@pytest.mark.parametrize("eps", [1e-5, 0.1])
def test_norms_start_as_plain_normalization(backend: OpenBackend, eps: float) -> None:
    x = host(2, 3, 8)
    wide = x.astype(np.float64)
    centred = (wide - wide.mean(-1, keepdims=True)) / np.sqrt(wide.var(-1, keepdims=True) + eps)
    np.testing.assert_allclose(LayerNorm(8, init=Init(0), eps=eps)(tensor(x)).numpy(), centred, rtol=1e-5, atol=1e-6)
    scaled = wide / np.sqrt((wide**2).mean(-1, keepdims=True) + eps)
    np.testing.assert_allclose(RMSNorm(8, init=Init(0), eps=eps)(tensor(x)).numpy(), scaled, rtol=1e-5, atol=1e-6)


def test_feed_forward_layers(backend: OpenBackend) -> None:
    x, erf = host(2, 3, 4), np.vectorize(math.erf)
    plain_layer, gated = FeedForward(4, 8, init=Init(0)), GatedFeedForward(4, 8, init=Init(1))
    w1, b1, w2, b2 = (p.numpy().astype(np.float64) for p in plain_layer.parameters())
    hidden = x @ w1.T + b1
    want = hidden * 0.5 * (1 + erf(hidden / math.sqrt(2))) @ w2.T + b2
    np.testing.assert_allclose(plain_layer(tensor(x)).numpy(), want, rtol=1e-4, atol=1e-7)
    gate, up, down = (p.numpy().astype(np.float64) for p in gated.parameters())
    left = x @ gate.T
    want = (left / (1 + np.exp(-left)) * (x @ up.T)) @ down.T
    np.testing.assert_allclose(gated(tensor(x)).numpy(), want, rtol=1e-4, atol=1e-9)


def test_rotary_tables_hold_the_angles(plain: OpenBackend) -> None:
    rotary = Rotary(16, 6, theta=100.0)
    cos, sin = rotary(3, 4)
    angles = np.outer(np.arange(3, 7), [1.0, 100 ** (-2 / 6), 100 ** (-4 / 6)])
    np.testing.assert_allclose(cos.numpy(), np.cos(angles), rtol=1e-6, atol=1e-7)
    np.testing.assert_allclose(sin.numpy(), np.sin(angles), rtol=1e-6, atol=1e-7)
    assert cos.dtype == "float32"
    for start, count in ((13, 4), (-1, 2), (0, 17)):
        with pytest.raises(ShapeError, match=r"context of 16"):
            rotary(start, count)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda i: Linear(0, 3, init=i), "inputs 0; wanted at least 1"),
        (lambda i: Linear(3, -1, init=i), "outputs -1"),
        (lambda i: Embedding(0, 3, init=i), "rows 0"),
        (lambda i: CausalSelfAttention(8, 3, init=i), "width 8 does not divide over 3 heads"),
        (lambda i: CausalSelfAttention(8, 0, init=i), "0 heads"),
        (lambda i: CausalSelfAttention(8, 4, init=i, kv_heads=3), "4 query heads do not divide over 3"),
        (lambda i: CausalSelfAttention(8, 4, init=i, kv_heads=0), "0 key-value heads"),
        (lambda i: Rotary(4, 3), "head size 3; wanted an even number"),
        (lambda i: Rotary(0, 4), "context 0"),
        (lambda i: Rotary(4, 4, theta=-1.0), "theta -1.0"),
        (lambda i: Rotary(4, 4, theta=math.nan), "theta nan"),
    ],
)
def test_impossible_sizes_are_refused(plain: OpenBackend, make: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make(Init(0))


def test_wrong_input_shapes_are_named(plain: OpenBackend) -> None:
    attention = CausalSelfAttention(8, 2, init=Init(0))
    for shape in ((3, 8), (2, 3, 4), (8,)):
        with pytest.raises(ShapeError, match=rf"attention got x \({shape[0]}.*wanted \(B, T, 8\)"):
            attention(tensor(host(*shape)))
    with pytest.raises(ShapeError, match=r"\(2, 3\).*\(5, 4\)"):
        Linear(4, 5, init=Init(0))(tensor(host(2, 3)))


def test_a_draw_is_a_function_of_seed_and_number(plain: OpenBackend) -> None:
    first, second, other = Init(3), Init(3), Init(4)
    a, b = first.normal((50,)), first.normal((50,))
    assert a.dtype == np.float32
    assert a.tobytes() == second.normal((50,)).tobytes()
    assert b.tobytes() == second.normal((50,)).tobytes()
    assert a.tobytes() != b.tobytes() != other.normal((50,)).tobytes()
    skipped = Init(3)
    skipped.normal((7, 7))  # the size of a draw does not move the next one
    assert skipped.normal((50,)).tobytes() == b.tobytes()
    assert first.zeros((2,)).tolist() == [0, 0]
    assert first.ones((2,)).tolist() == [1, 1]


def test_draws_are_normal_with_the_wanted_spread(plain: OpenBackend) -> None:
    x = Init(9).normal((200_000,), std=0.02) / 0.02
    assert abs(x.mean()) < 0.01
    assert abs(x.std() - 1) < 0.01
    assert abs((x**3).mean()) < 0.03
    assert abs((x**4).mean() - 3) < 0.1


@pytest.mark.parametrize("seed", [-1, 2**64, 1.5, True, "1", None])
def test_impossible_seeds_are_refused(seed: Any) -> None:
    with pytest.raises(ConfigError, match="seed"):
        Init(seed)
    Init(2**64 - 1).normal((1,))
