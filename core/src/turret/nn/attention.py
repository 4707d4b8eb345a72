"""Causal self-attention with grouped key-value heads."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Literal, Protocol

from turret.spi import ConfigError, ShapeError
from turret.tensor import Tensor, ops

from .init import INIT_STD, Init
from .linear import Linear, project
from .module import Module
from .normalization import RMSNorm
from .regularization import dropout, dropped_attention, drops
from .rotary import Rotation
from .segments import Segments

AttentionForm = Literal["materialized", "flash"]
"""How attention without a cache is computed: with all its probabilities in memory, or linear in the tokens."""


class LayerCache(Protocol):
    """Keys and values of one layer for tokens already seen."""

    def attend(self, q: Tensor, k: Tensor, v: Tensor, *, scale: float) -> Tensor:
        """Takes k and v (B, T, K, d) of the new tokens; q: (B, T, H, d) sees them and all before; returns its shape."""
        ...


class CausalSelfAttention(Module):
    """Queries, keys and values from x, causal attention, and an output projection.

    query: (H d, D), key and value: (K d, D), output: (D, H d), with d = D / H unless `head_size` says otherwise. Query
    head h reads key-value head h // (H / K). `norm_eps`: queries and keys of each head go through an RMSNorm (d,)
    before they are turned. `dropout`: the rate at which probabilities are dropped inside `dropping`.
    Source: Vaswani et al. 2017, section 3.2; Ainslie et al. 2023, section 2.2; Henry et al. 2020 (normalized queries
    and keys).
    """

    def __init__(
        self,
        width: int,
        heads: int,
        *,
        init: Init,
        kv_heads: int | None = None,
        head_size: int | None = None,
        bias: bool = True,
        output_bias: bool | None = None,
        norm_eps: float | None = None,
        residual_std: float = INIT_STD,
    ) -> None:
        self.heads = heads
        self.kv_heads = heads if kv_heads is None else kv_heads
        self.head_size = check_heads(width, self.heads, self.kv_heads, head_size)
        self.width = width
        self.form: AttentionForm | str = "materialized"
        self.dropout = 0.0
        wide, narrow = self.heads * self.head_size, self.kv_heads * self.head_size
        self.query = Linear(width, wide, init=init, bias=bias)
        self.key = Linear(width, narrow, init=init, bias=bias)
        self.value = Linear(width, narrow, init=init, bias=bias)
        output_bias = bias if output_bias is None else output_bias
        self.output = Linear(wide, width, init=init, bias=output_bias, std=residual_std)
        self.query_norm = None if norm_eps is None else RMSNorm(self.head_size, init=init, eps=norm_eps)
        self.key_norm = None if norm_eps is None else RMSNorm(self.head_size, init=init, eps=norm_eps)

    def __call__(
        self,
        x: Tensor,
        cache: LayerCache | None = None,
        rotation: Rotation | None = None,
        segments: Segments | None = None,
    ) -> Tensor:
        """x: (B, T, D); returns the same shape. With a cache the new tokens follow the ones it holds.

        rotation: cos and sin of the new tokens' positions, for queries and keys; none leaves them as they are.
        segments: which tokens see each other; without, all of a row do. Not with a cache.
        """
        if x.ndim != 3 or x.shape[2] != self.width:
            raise ShapeError(f"attention got x {x.shape}; wanted (B, T, {self.width})")
        b, t, _ = x.shape
        q, k, v = project(x, self.query, self.key, self.value)
        q = q.reshape(b, t, self.heads, self.head_size)
        k = k.reshape(b, t, self.kv_heads, self.head_size)
        v = v.reshape(b, t, self.kv_heads, self.head_size)
        if self.query_norm is not None and self.key_norm is not None:
            q, k = self.query_norm(q), self.key_norm(k)
        if rotation is not None:
            q, k = ops.rope(q, *rotation), ops.rope(k, *rotation)
        scale = 1.0 / math.sqrt(self.head_size)
        if cache is not None:
            mixed = cache.attend(q, k, v, scale=scale)
        elif segments is not None:
            mixed = self._within(segments, q, k, v, scale=scale)
        else:
            mixed = self._mixed(q, k, v, scale=scale)
        return self.output(mixed.reshape(b, t, self.heads * self.head_size))

    def _within(self, segments: Segments, q: Tensor, k: Tensor, v: Tensor, *, scale: float) -> Tensor:
        """Values of the keys that each query sees in its own text."""
        rate = self.dropout if drops(self.dropout) else 0.0
        if rate:
            segments = replace(segments, spans=None)  # probabilities can be dropped where they are in memory alone
        linear_memory = self.form == "flash"
        return segments.attend(q, k, v, scale=scale, linear_memory=linear_memory, drop=lambda p: dropout(p, rate))

    def _mixed(self, q: Tensor, k: Tensor, v: Tensor, *, scale: float) -> Tensor:
        """Values of the keys that each query sees, in the form chosen for training."""
        if drops(self.dropout):
            linear_memory = self.form == "flash"
            return dropped_attention(q, k, v, scale=scale, rate=self.dropout, linear_memory=linear_memory)
        if self.form == "flash":
            return ops.flash_attention(q, k, v, scale=scale)
        return ops.causal_attention(q, k, v, scale=scale)


def check_heads(width: int, heads: int, kv_heads: int, head_size: int | None = None) -> int:
    """The head size: as given, or the width divided by the heads.

    Raises: ConfigError unless heads divide the width (where no size is given) and key-value heads divide the heads.
    """
    if heads < 1 or (head_size is None and width % heads):
        raise ConfigError(f"width {width} does not divide over {heads} heads; choose a multiple")
    if kv_heads < 1 or heads % kv_heads:
        raise ConfigError(f"{heads} query heads do not divide over {kv_heads} key-value heads; check kv_heads")
    if head_size is not None and head_size < 1:
        raise ConfigError(f"head size {head_size}; wanted at least 1")
    return width // heads if head_size is None else head_size
