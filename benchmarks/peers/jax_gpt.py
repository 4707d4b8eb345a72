"""The peer: the decoder of `turret.models` in plain jax.numpy, one jitted step with donated parameters and moments.

Parameters are a tree of dicts and lists that comes from a turret state dict.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

HostState = Mapping[str, np.ndarray[Any, Any]]
Pair = Mapping[str, jax.Array]
Tree = Any
EPS = 1e-5

# The spelling of each part is the fastest of those tried (JAX 0.10.2, two CPU cores, alternating in one process). CPU
# time of a step relative to this file's, at (8,128,128,4,4) and at (4,256,256,8,2):
#   weights stored (inputs, outputs)                        1.20  1.11
#   jax.nn.dot_product_attention                            1.20  1.14
#   whole score matrix, jax.nn.softmax                      1.15  1.20
#   whole score matrix, divided by the sums after values    1.06  1.05
#   variance as mean of squares less square of mean         1.09  1.03
#   GELU's saved values instead of computed again           1.03  1.05
#   parameters and moments each as one flat vector          1.03  0.99
#   log_softmax times one-hot targets                       1.02  1.02
#   embedding gradient as a one-hot product                 1.00  1.07
#   all of the plain spellings at once                      1.45  1.33
# Earlier, at (8,128,128,4,2), by time: q, k and v as slices of the joined matrix 1.3, lax.scan over blocks 1.4.


def load(state: HostState) -> Tree:
    """The tree of a turret decoder's values, q, k and v in one matrix."""

    def pair(name: str, weight: str = "weight") -> dict[str, jax.Array]:
        return {"weight": jnp.array(state[f"{name}.{weight}"]), "bias": jnp.array(state[f"{name}.bias"])}

    def joined(name: str) -> dict[str, jax.Array]:
        parts = [pair(f"{name}.{each}") for each in ("query", "key", "value")]
        return {kind: jnp.concatenate([part[kind] for part in parts]) for kind in ("weight", "bias")}

    def block(name: str) -> dict[str, dict[str, jax.Array]]:
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
        "tokens": jnp.array(state["token_embedding.weight"]),
        "positions": jnp.array(state["position_embedding.weight"]),
        "blocks": [block(f"blocks.{i}") for i in range(layers)],
        "norm": pair("final_norm", "scale"),
        "head": pair("language_model_head"),
    }


def linear(x: jax.Array, p: Pair) -> jax.Array:
    return jnp.einsum("bti,oi->bto", x, p["weight"]) + p["bias"]


def layer_norm(x: jax.Array, p: Pair) -> jax.Array:
    centred = x - x.mean(-1, keepdims=True)
    return centred * jax.lax.rsqrt(jnp.square(centred).mean(-1, keepdims=True) + EPS) * p["weight"] + p["bias"]


def attention(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
    """(B, T, H, d) each. Half of the queries at a time, which spares the first half the later keys."""
    t, q = q.shape[1], q * q.shape[3] ** -0.5
    causal, half = jnp.tril(jnp.ones((t, t), bool)), math.ceil(t / 2)
    mixed = []
    for rows in (slice(0, half), slice(half, t)):
        scores = jnp.einsum("bthd,bshd->bhts", q[:, rows], k[:, : rows.stop])
        scores = jnp.where(causal[rows, : rows.stop], scores, -jnp.inf)
        exponents = jnp.exp(scores - jax.lax.stop_gradient(scores.max(-1, keepdims=True)))
        total = exponents.sum(-1).swapaxes(1, 2)[..., None]
        mixed.append(jnp.einsum("bhts,bshd->bthd", exponents, v[:, : rows.stop]) / total)
    return jnp.concatenate(mixed, axis=1)


def gelu(x: jax.Array) -> jax.Array:
    made: jax.Array = jax.checkpoint(partial(jax.nn.gelu, approximate=False))(x)
    return made


def gpt(params: Tree, ids: jax.Array, heads: int) -> jax.Array:
    """ids: (B, T); returns (B, T, vocabulary)."""
    x = params["tokens"][ids] + params["positions"][: ids.shape[1]]
    b, t, d = x.shape
    for p in params["blocks"]:
        joined = linear(layer_norm(x, p["norm1"]), p["qkv"])
        q, k, v = (part.reshape(b, t, heads, d // heads) for part in jnp.split(joined, 3, axis=-1))
        x = x + linear(attention(q, k, v).reshape(b, t, d), p["output"])
        x = x + linear(gelu(linear(layer_norm(x, p["norm2"]), p["expand"])), p["project"])
    return linear(layer_norm(x, params["norm"]), params["head"])


def cross_entropy(logits: jax.Array, targets: jax.Array) -> jax.Array:
    hit = jnp.take_along_axis(logits, targets[..., None], axis=-1)[..., 0]
    return (jax.nn.logsumexp(logits, axis=-1) - hit).mean()


class JaxTrainer:
    """One compiled step: forward, loss, backward, clip to norm 1, AdamW."""

    def __init__(
        self, params: Tree, *, heads: int, lr: float, betas: tuple[float, float], weight_decay: float, eps: float = 1e-8
    ) -> None:
        (beta1, beta2), self.lr, self.betas, self.steps = betas, lr, betas, 0
        self._state = (params, jax.tree.map(jnp.zeros_like, params), jax.tree.map(jnp.zeros_like, params))

        def loss(params: Tree, ids: jax.Array) -> jax.Array:
            return cross_entropy(gpt(params, ids[:, :-1], heads), ids[:, 1:])

        def step(state: Tree, ids: jax.Array, lr: jax.Array, correction1: jax.Array, correction2: jax.Array) -> Tree:
            params, first, second = state
            value, grads = jax.value_and_grad(loss)(params, ids)
            norm = jnp.sqrt(sum(jnp.square(g).sum() for g in jax.tree.leaves(grads)))
            grads = jax.tree.map(lambda g: g * jnp.where(norm > 1.0, 1.0 / norm, 1.0), grads)
            first = jax.tree.map(lambda m, g: beta1 * m + (1.0 - beta1) * g, first, grads)
            second = jax.tree.map(lambda v, g: beta2 * v + (1.0 - beta2) * g * g, second, grads)

            def updated(p: jax.Array, m: jax.Array, v: jax.Array) -> jax.Array:
                decay = weight_decay if p.ndim >= 2 else 0.0
                return p - lr * (m / correction1 / (jnp.sqrt(v / correction2) + eps) + decay * p)

            return (jax.tree.map(updated, params, first, second), first, second), value

        self._step = jax.jit(step, donate_argnums=0)

    def step(self, ids: np.ndarray[Any, Any], *, lr: float | None = None) -> float:
        """ids: (B, T + 1); returns the loss."""
        self.steps += 1
        corrections = (np.float32(1.0 - beta**self.steps) for beta in self.betas)
        self._state, loss = self._step(self._state, ids, np.float32(self.lr if lr is None else lr), *corrections)
        return float(loss)
