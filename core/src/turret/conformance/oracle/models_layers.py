"""Layers of the two model families over named weights, each with its gradient written by hand."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import numpy as np

from turret.spi import GeluForm

from . import activation, attention, linear, normalization, rope
from .arrays import Array

Backward = Callable[[Array], Array]
Layer = Callable[[Array], tuple[Array, Backward]]


class Pass:
    """One forward pass in float64.

    A layer returns its output and the function that takes the output's gradient to the input's; calling that function
    adds the gradients of the layer's weights to `gradients`. Activations are (B, T, D).
    """

    def __init__(self, weights: Mapping[str, Array]) -> None:
        self.weights = {name: value.astype(np.float64) for name, value in weights.items()}
        self.gradients: dict[str, Array] = {}

    def file(self, name: str, gradient: Array) -> None:
        """Adds to the gradient of a weight: a tied one is reached twice."""
        self.gradients[name] = self.gradients[name] + gradient if name in self.gradients else gradient

    def embed(self, name: str, ids: Array) -> tuple[Array, Callable[[Array], None]]:
        """Rows (B, T, D) of a table at ids (B, T); the gradient sums over equal ids."""
        table = self.weights[name]
        chosen = (ids.reshape(-1, 1) == np.arange(table.shape[0])).astype(np.float64)
        return table[ids], lambda dy: self.file(name, chosen.T @ dy.reshape(-1, table.shape[1]))

    def positions(self, name: str, count: int) -> tuple[Array, Callable[[Array], None]]:
        """The first `count` rows of a table, for every sequence of the batch; the rest has a gradient of zero."""
        table = self.weights[name]
        unused = np.zeros((table.shape[0] - count, table.shape[1]))
        return table[:count], lambda dy: self.file(name, np.concatenate([dy.sum(axis=0), unused]))

    def linear(self, name: str, x: Array, *, weight: str = "") -> tuple[Array, Backward]:
        """x @ W^T, plus a bias where there is one; `weight` names a shared matrix instead of the layer's own."""
        weight, bias = weight or f"{name}.weight", f"{name}.bias"
        matrix, has_bias = self.weights[weight], bias in self.weights

        def backward(dy: Array) -> Array:
            of_weight, of_bias = linear.linear_vjp_weight(dy, x)
            self.file(weight, of_weight)
            if has_bias:
                self.file(bias, of_bias)
            return linear.linear_vjp_input(dy, matrix)

        return linear.linear(x, matrix, self.weights[bias] if has_bias else None), backward

    def layer_norm(self, name: str, x: Array, *, eps: float) -> tuple[Array, Backward]:
        scale = self.weights[f"{name}.scale"]
        out, mean, rstd = normalization.layer_norm(x, scale, self.weights[f"{name}.bias"], eps=eps)

        def backward(dy: Array) -> Array:
            of_x, of_scale, of_bias = normalization.layer_norm_vjp(dy, x, scale, mean, rstd)
            self.file(f"{name}.scale", of_scale)
            self.file(f"{name}.bias", of_bias)
            return of_x

        return out, backward

    def rms_norm(self, name: str, x: Array, *, eps: float) -> tuple[Array, Backward]:
        scale = self.weights[f"{name}.scale"]
        out, rstd = normalization.rms_norm(x, scale, eps=eps)

        def backward(dy: Array) -> Array:
            of_x, of_scale = normalization.rms_norm_vjp(dy, x, scale, rstd)
            self.file(f"{name}.scale", of_scale)
            return of_x

        return out, backward

    def attention(
        self, name: str, x: Array, *, heads: int, kv_heads: int, rotation: tuple[Array, Array] | None
    ) -> tuple[Array, Backward]:
        """Causal self-attention; `rotation` is the cos and sin (T, d/2) that turn queries and keys."""
        b, t, width = x.shape
        size = width // heads
        shapes = {"query": heads, "key": kv_heads, "value": kv_heads}
        projected = {part: self.linear(f"{name}.{part}", x) for part in shapes}
        q, k, v = (projected[part][0].reshape(b, t, count, size) for part, count in shapes.items())
        if rotation is not None:
            q, k = (rope.rope(part, *rotation, interleaved=False) for part in (q, k))
        scale = 1 / math.sqrt(size)
        mixed, probabilities = attention.attend(q, k, v, scale=scale, offset=0)
        out, output_backward = self.linear(f"{name}.output", mixed.reshape(b, t, width))

        def backward(dy: Array) -> Array:
            d_mixed = output_backward(dy).reshape(b, t, heads, size)
            d_q, d_k, d_v = attention.attend_vjp(d_mixed, q, k, v, probabilities, scale=scale)
            if rotation is not None:
                d_q, d_k = (rope.rope_vjp(part, *rotation, interleaved=False) for part in (d_q, d_k))
            parts = zip(projected.values(), (d_q, d_k, d_v), strict=True)
            d_query, d_key, d_value = (back(part.reshape(b, t, -1)) for (_, back), part in parts)
            return d_query + d_key + d_value

        return out, backward

    def feed_forward(self, name: str, x: Array, *, form: GeluForm) -> tuple[Array, Backward]:
        hidden, expand_backward = self.linear(f"{name}.expand", x)
        out, project_backward = self.linear(f"{name}.project", activation.gelu(hidden, form=form))
        return out, lambda dy: expand_backward(activation.gelu_vjp(project_backward(dy), hidden, form=form))

    def gated_feed_forward(self, name: str, x: Array) -> tuple[Array, Backward]:
        gate, gate_backward = self.linear(f"{name}.gate", x)
        up, up_backward = self.linear(f"{name}.up", x)
        out, down_backward = self.linear(f"{name}.down", activation.gated_silu(gate, up))

        def backward(dy: Array) -> Array:
            d_gate, d_up = activation.gated_silu_vjp(down_backward(dy), gate, up)
            return gate_backward(d_gate) + up_backward(d_up)

        return out, backward


def residual(x: Array, norm: Layer, layer: Layer) -> tuple[Array, Backward]:
    """x + layer(norm(x))."""
    normed, norm_backward = norm(x)
    out, layer_backward = layer(normed)
    return x + out, lambda dy: dy + norm_backward(layer_backward(dy))
