"""The peer: the decoder of `turret.models` in plain MLX, one compiled step that updates its state.

Parameters are a tree of dicts and lists that comes from a turret state dict.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import mlx.core as mx
import numpy as np
from mlx.nn.layers.activations import gelu
from mlx.nn.losses import cross_entropy
from mlx.utils import tree_flatten, tree_map

HostState = Mapping[str, np.ndarray[Any, Any]]
Pair = Mapping[str, mx.array]
Tree = Any
EPS = 1e-5

# Other spellings of a part are no faster on MLX 0.32.4's CPU device. The least time of a step at (4,64,64,4,2), in ms,
# where this file's is 76: bias added after the product 77, weights stored (inputs, outputs) 77, GELU from mx.erf 75,
# attention as two products with a softmax 75, LayerNorm written out 75, not compiled 84.


def load(state: HostState) -> Tree:
    """The tree of a turret decoder's values, q, k and v in one matrix."""

    def pair(name: str, weight: str = "weight") -> dict[str, mx.array]:
        return {"weight": mx.array(state[f"{name}.{weight}"]), "bias": mx.array(state[f"{name}.bias"])}

    def joined(name: str) -> dict[str, mx.array]:
        parts = [pair(f"{name}.{each}") for each in ("query", "key", "value")]
        return {kind: mx.concatenate([part[kind] for part in parts]) for kind in ("weight", "bias")}

    def block(name: str) -> dict[str, dict[str, mx.array]]:
        return {
            "norm1": pair(f"{name}.attention_norm", "scale"),
            "qkv": joined(f"{name}.attention"),
            "output": pair(f"{name}.attention.output"),
            "norm2": pair(f"{name}.feed_forward_norm", "scale"),
            "expand": pair(f"{name}.feed_forward.expand"),
            "project": pair(f"{name}.feed_forward.project"),
        }

    layers = 1 + max(int(name.split(".")[1]) for name in state if name.startswith("blocks."))
    return {
        "tokens": mx.array(state["token_embedding.weight"]),
        "positions": mx.array(state["position_embedding.weight"]),
        "blocks": [block(f"blocks.{i}") for i in range(layers)],
        "norm": pair("final_norm", "scale"),
        "head": pair("language_model_head"),
    }


def linear(x: mx.array, p: Pair) -> mx.array:
    return mx.addmm(p["bias"], x, p["weight"].T)


def layer_norm(x: mx.array, p: Pair) -> mx.array:
    return mx.fast.layer_norm(x, p["weight"], p["bias"], EPS)


def attention(q: mx.array, k: mx.array, v: mx.array) -> mx.array:
    """(B, H, T, d) each."""
    return mx.fast.scaled_dot_product_attention(q, k, v, scale=q.shape[-1] ** -0.5, mask="causal")


def gpt(params: Tree, ids: mx.array, heads: int) -> mx.array:
    """ids: (B, T); returns (B, T, vocabulary)."""
    x = params["tokens"][ids] + params["positions"][: ids.shape[1]]
    b, t, d = x.shape
    for p in params["blocks"]:
        joined = linear(layer_norm(x, p["norm1"]), p["qkv"])
        q, k, v = (part.reshape(b, t, heads, d // heads).swapaxes(1, 2) for part in mx.split(joined, 3, axis=-1))
        x = x + linear(attention(q, k, v).swapaxes(1, 2).reshape(b, t, d), p["output"])
        x = x + linear(gelu(linear(layer_norm(x, p["norm2"]), p["expand"])), p["project"])
    return linear(layer_norm(x, params["norm"]), params["head"])


class MlxTrainer:
    """One compiled step: forward, loss, backward, clip to norm 1, AdamW."""

    def __init__(
        self, params: Tree, *, heads: int, lr: float, betas: tuple[float, float], weight_decay: float, eps: float = 1e-8
    ) -> None:
        (beta1, beta2), self.lr, self.betas, self.steps = betas, lr, betas, 0
        self._state = [params, tree_map(mx.zeros_like, params), tree_map(mx.zeros_like, params)]
        mx.eval(self._state)

        def loss(params: Tree, ids: mx.array) -> mx.array:
            made: mx.array = cross_entropy(gpt(params, ids[:, :-1], heads), ids[:, 1:], reduction="mean")
            return made

        def step(ids: mx.array, lr: mx.array, correction1: mx.array, correction2: mx.array) -> mx.array:
            params, first, second = self._state
            value, grads = mx.value_and_grad(loss)(params, ids)
            leaves: Any = tree_flatten(grads)
            norm = mx.sqrt(mx.stack([mx.square(g).sum() for _, g in leaves]).sum())
            clip = mx.where(norm > 1.0, 1.0 / norm, 1.0)
            grads = tree_map(lambda g: g * clip, grads)
            first = tree_map(lambda m, g: beta1 * m + (1.0 - beta1) * g, first, grads)
            second = tree_map(lambda v, g: beta2 * v + (1.0 - beta2) * g * g, second, grads)

            def updated(p: mx.array, m: mx.array, v: mx.array) -> mx.array:
                decay = weight_decay if p.ndim >= 2 else 0.0
                return p - lr * (m / correction1 / (mx.sqrt(v / correction2) + eps) + decay * p)

            self._state[:] = [tree_map(updated, params, first, second), first, second]
            return value

        self._step = mx.compile(step, inputs=self._state, outputs=self._state)

    def step(self, ids: np.ndarray[Any, Any], *, lr: float | None = None) -> float:
        """ids: (B, T + 1); returns the loss."""
        self.steps += 1
        scalars = (self.lr if lr is None else lr, *(1.0 - beta**self.steps for beta in self.betas))
        loss = self._step(mx.array(ids), *(mx.array(x, mx.float32) for x in scalars))
        mx.eval(loss, self._state)
        value: Any = loss.item()
        return float(value)
