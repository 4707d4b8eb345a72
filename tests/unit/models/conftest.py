"""Both families written out again in float64 NumPy, one head and one position at a time where order matters."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from turret.models import DecoderConfig, LanguageModel, MiniConfig

Array = npt.NDArray[Any]
erf = np.vectorize(math.erf, otypes=[np.float64])


def softmax(x: Array) -> Array:
    p = np.exp(x - x.max(-1, keepdims=True))
    return p / p.sum(-1, keepdims=True)


def turn(x: Array, position: int, theta: float) -> Array:
    """RoPE of one head's vector: the pair (i, i + d/2) turns by position * theta^(-2i/d)."""
    half = x.size // 2
    out = np.empty_like(x)
    for i in range(half):
        angle = position * theta ** (-2 * i / x.size)
        out[i] = x[i] * math.cos(angle) - x[i + half] * math.sin(angle)
        out[i + half] = x[i] * math.sin(angle) + x[i + half] * math.cos(angle)
    return out


class Reference:
    """Logits of a model's weights for one sequence."""

    def __init__(self, model: LanguageModel) -> None:
        self.w = {name: value.astype(np.float64) for name, value in model.state_dict().items()}
        self.c: Any = model.config  # type: ignore[attr-defined]
        self.mini = isinstance(self.c, MiniConfig)

    def linear(self, name: str, x: Array) -> Array:
        y = x @ self.w[f"{name}.weight"].T
        return y + self.w[f"{name}.bias"] if f"{name}.bias" in self.w else y

    def norm(self, name: str, x: Array) -> Array:
        if self.mini:
            return x / np.sqrt((x**2).mean(-1, keepdims=True) + self.c.eps) * self.w[f"{name}.scale"]
        centred = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + self.c.eps)
        return centred * self.w[f"{name}.scale"] + self.w[f"{name}.bias"]

    def attention(self, name: str, x: Array) -> Array:
        heads, kv_heads = self.c.heads, self.c.kv_heads or self.c.heads
        d, t = self.c.width // heads, len(x)
        q = self.linear(f"{name}.query", x).reshape(t, heads, d)
        k = self.linear(f"{name}.key", x).reshape(t, kv_heads, d)
        v = self.linear(f"{name}.value", x).reshape(t, kv_heads, d)
        if self.mini:
            for part in (q, k):
                for i, h in np.ndindex(*part.shape[:2]):
                    part[i, h] = turn(part[i, h], i, self.c.rope_theta)
        out = np.zeros_like(q)
        for i in range(t):
            for h in range(heads):
                source = h // (heads // kv_heads)
                weights = softmax(k[: i + 1, source] @ q[i, h] / math.sqrt(d))
                out[i, h] = weights @ v[: i + 1, source]
        return self.linear(f"{name}.output", out.reshape(t, -1))

    def feed_forward(self, name: str, x: Array) -> Array:
        if self.mini:
            gate = self.linear(f"{name}.gate", x)
            return self.linear(f"{name}.down", gate / (1 + np.exp(-gate)) * self.linear(f"{name}.up", x))
        hidden = self.linear(f"{name}.expand", x)
        if self.c.gelu == "tanh":
            inner = math.sqrt(2 / math.pi) * (hidden + 0.044715 * hidden**3)
            return self.linear(f"{name}.project", hidden * 0.5 * (1 + np.tanh(inner)))
        return self.linear(f"{name}.project", hidden * 0.5 * (1 + erf(hidden / math.sqrt(2))))

    def __call__(self, ids: Array) -> Array:
        x = self.w["token_embedding.weight"][ids]
        if not self.mini:
            x = x + self.w["position_embedding.weight"][: len(ids)]
        for n in range(self.c.blocks):
            a = x + self.attention(f"blocks.{n}.attention", self.norm(f"blocks.{n}.attention_norm", x))
            x = a + self.feed_forward(f"blocks.{n}.feed_forward", self.norm(f"blocks.{n}.feed_forward_norm", a))
        x = self.norm("final_norm", x)
        return x @ self.w["token_embedding.weight"].T if self.c.tied_head else self.linear("language_model_head", x)


@pytest.fixture(scope="session")
def reference() -> Callable[[LanguageModel], Callable[[Array], Array]]:
    return Reference


CONFIGS = {
    "decoder": DecoderConfig(vocabulary=27),
    "decoder-tanh-grouped-tied": DecoderConfig(
        vocabulary=19, kv_heads=2, gelu="tanh", tied_head=True, head_bias=False, eps=1e-3
    ),
    "decoder-no-head-bias": DecoderConfig(vocabulary=11, head_bias=False, blocks=1, heads=1),
    "mini": MiniConfig(vocabulary=27, context=16, width=32, feed_forward=48),
    "mini-untied": MiniConfig(
        vocabulary=19, context=16, width=24, heads=6, kv_heads=3, blocks=3, tied_head=False, rope_theta=50.0
    ),
    "mini-one-head": MiniConfig(vocabulary=5, context=16, width=8, heads=4, kv_heads=1, blocks=1, eps=1e-3),
}


@pytest.fixture(params=CONFIGS.values(), ids=CONFIGS.keys())
def config(request: pytest.FixtureRequest) -> DecoderConfig | MiniConfig:
    return request.param  # type: ignore[no-any-return]
