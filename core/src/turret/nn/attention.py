"""Causal self-attention with grouped key-value heads."""

from __future__ import annotations

import math
from typing import Literal, Protocol

from turret.spi import ConfigError, ShapeError
from turret.tensor import Tensor, ops

from .init import INIT_STD, Init
from .linear import Linear, project
from .module import Module
from .regularization import dropped_attention, drops
from .rotary import Rotation

AttentionForm = Literal["materialized", "flash"]
"""How attention without a cache is computed: with all its probabilities in memory, or linear in the tokens."""


class LayerCache(Protocol):
    """Keys and values of one layer for tokens already seen."""

    def attend(self, q: Tensor, k: Tensor, v: Tensor, *, scale: float) -> Tensor:
        """Takes k and v (B, T, K, d) of the new tokens; q: (B, T, H, d) sees them and all before; returns its shape."""
        ...


class CausalSelfAttention(Module):
    """Queries, keys and values from x, causal attention, and an output projection.

    query and output: (D, D); key and value: (E, D) with E = kv_heads * (D / heads). Query head h reads key-value head
    h // (heads / kv_heads). `dropout`: the rate at which probabilities are dropped inside `dropping`.
    Source: Vaswani et al. 2017, section 3.2; Ainslie et al. 2023, section 2.2.
    """

    def __init__(
        self,
        width: int,
        heads: int,
        *,
        init: Init,
        kv_heads: int | None = None,
        bias: bool = True,
        residual_std: float = INIT_STD,
    ) -> None:
        self.heads = heads
        self.kv_heads = heads if kv_heads is None else kv_heads
        check_heads(width, self.heads, self.kv_heads)
        self.head_size = width // heads
        self.form: AttentionForm | str = "materialized"
        self.dropout = 0.0
        narrow = self.kv_heads * self.head_size
        self.query = Linear(width, width, init=init, bias=bias)
        self.key = Linear(width, narrow, init=init, bias=bias)
        self.value = Linear(width, narrow, init=init, bias=bias)
        self.output = Linear(width, width, init=init, bias=bias, std=residual_std)

    def __call__(self, x: Tensor, cache: LayerCache | None = None, rotation: Rotation | None = None) -> Tensor:
        """x: (B, T, D); returns the same shape. With a cache the new tokens follow the ones it holds.

        rotation: cos and sin of the new tokens' positions, for queries and keys; none leaves them as they are.
        """
        if x.ndim != 3 or x.shape[2] != self.heads * self.head_size:
            raise ShapeError(f"attention got x {x.shape}; wanted (B, T, {self.heads * self.head_size})")
        b, t, width = x.shape
        q, k, v = project(x, self.query, self.key, self.value)
        q = q.reshape(b, t, self.heads, self.head_size)
        k = k.reshape(b, t, self.kv_heads, self.head_size)
        v = v.reshape(b, t, self.kv_heads, self.head_size)
        if rotation is not None:
            q, k = ops.rope(q, *rotation), ops.rope(k, *rotation)
        scale = 1.0 / math.sqrt(self.head_size)
        if cache is not None:
            mixed = cache.attend(q, k, v, scale=scale)
        elif drops(self.dropout):
            linear_memory = self.form == "flash"
            mixed = dropped_attention(q, k, v, scale=scale, rate=self.dropout, linear_memory=linear_memory)
        elif self.form == "flash":
            mixed = ops.flash_attention(q, k, v, scale=scale)
        else:
            mixed = ops.causal_attention(q, k, v, scale=scale)
        return self.output(mixed.reshape(b, t, width))


def check_heads(width: int, heads: int, kv_heads: int) -> None:
    """Raises: ConfigError unless heads divide the width and key-value heads divide the heads."""
    if heads < 1 or width % heads:
        raise ConfigError(f"width {width} does not divide over {heads} heads; choose a multiple")
    if kv_heads < 1 or heads % kv_heads:
        raise ConfigError(f"{heads} query heads do not divide over {kv_heads} key-value heads; check kv_heads")
