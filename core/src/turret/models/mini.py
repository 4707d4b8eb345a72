"""The second family: grouped heads, rotary positions, RMSNorm, gated SiLU, no biases, a tied head."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Literal, get_args

from turret.nn import (
    Block,
    CausalSelfAttention,
    Embedding,
    GatedFeedForward,
    Init,
    Linear,
    ModuleList,
    RMSNorm,
    RopeScaling,
    Rotary,
    Segments,
)
from turret.nn.attention import check_heads
from turret.nn.init import INIT_STD
from turret.nn.precision import lowered
from turret.spi import ConfigError
from turret.tensor import Tensor, ops

from .base import Cache, LanguageModel, check_ids, chosen, layer_cache, token_places
from .config import from_values, require_flags, require_positive, require_sizes

AttentionBias = Literal["none", "qkv", "all"]
"""Which projections of attention have a bias: none; queries, keys and values; the output as well."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MiniConfig:
    """Sizes of a mini transformer. The fields from `head_size` on are what published models of this family vary.

    head_size: width / heads where it is None. query_key_norm: an RMSNorm of each head before it is turned.
    """

    vocabulary: int
    context: int = 64
    width: int = 64
    heads: int = 4
    kv_heads: int = 2
    blocks: int = 2
    feed_forward: int = 128
    rope_theta: float = 10_000.0
    eps: float = 1e-5
    tied_head: bool = True
    head_size: int | None = None
    attention_bias: AttentionBias = "none"
    query_key_norm: bool = False
    rope_scaling: RopeScaling | None = None

    def __post_init__(self) -> None:
        require_sizes(
            "mini",
            vocabulary=self.vocabulary,
            context=self.context,
            width=self.width,
            heads=self.heads,
            kv_heads=self.kv_heads,
            blocks=self.blocks,
            feed_forward=self.feed_forward,
        )
        if self.head_size is not None:
            require_sizes("mini", head_size=self.head_size)
        check_heads(self.width, self.heads, self.kv_heads, self.head_size)
        if self.size_of_head % 2:
            raise ConfigError(f"mini: head size {self.size_of_head} is odd; rotary positions turn pairs")
        require_positive("mini", eps=self.eps, rope_theta=self.rope_theta)
        require_flags("mini", tied_head=self.tied_head, query_key_norm=self.query_key_norm)
        if self.attention_bias not in get_args(AttentionBias):
            words = ", ".join(get_args(AttentionBias))
            raise ConfigError(f"mini: attention_bias is {self.attention_bias!r:.40}; wanted one of {words}")
        if isinstance(self.rope_scaling, Mapping):  # as files have it
            object.__setattr__(self, "rope_scaling", from_values(RopeScaling, self.rope_scaling))
        if not isinstance(self.rope_scaling, RopeScaling | None):
            raise ConfigError(f"mini: rope_scaling is {self.rope_scaling!r:.40}; wanted a RopeScaling or none")

    @property
    def size_of_head(self) -> int:
        """The head size, as given or as it follows from width and heads."""
        return self.width // self.heads if self.head_size is None else self.head_size

    def parameter_count(self) -> int:
        """Closed form: VD + L(2DW + 2DE + 3DF + 2D) + D with W = H d, E = K d, and VD more for an untied head.

        Biases add W + 2E, and D for the output's; normalized queries and keys 2d, all of them in every block.
        """
        v, d, f, size = self.vocabulary, self.width, self.feed_forward, self.size_of_head
        w, e = self.heads * size, self.kv_heads * size
        biases = {"none": 0, "qkv": w + 2 * e, "all": w + 2 * e + d}[self.attention_bias]
        block = 2 * d * w + 2 * d * e + 3 * d * f + 2 * d + biases + (2 * size if self.query_key_norm else 0)
        return v * d + self.blocks * block + d + (0 if self.tied_head else v * d)


class Mini(LanguageModel):
    """a = x + attention(RMS(x)); y = a + gated FFN(RMS(a)), after token embeddings; RMS and head at the end."""

    kind = "mini"

    def __init__(self, config: MiniConfig, *, seed: int = 0, init: Init | None = None) -> None:
        """init: where parameters come from; by default they are drawn from `seed`."""
        self.config = config
        self.vocabulary, self.context = config.vocabulary, config.context
        self.blocks_count, self.kv_heads = config.blocks, config.kv_heads
        self.head_size = config.size_of_head
        init, width = Init(seed) if init is None else init, config.width
        residual_std = INIT_STD / math.sqrt(2 * config.blocks)
        self.token_embedding = Embedding(config.vocabulary, width, init=init)
        self.rotary = Rotary(config.context, self.head_size, theta=config.rope_theta, scaling=config.rope_scaling)
        self.blocks = ModuleList(
            Block(
                norm=lambda: RMSNorm(width, init=init, eps=config.eps),
                attention=CausalSelfAttention(
                    width,
                    config.heads,
                    init=init,
                    kv_heads=config.kv_heads,
                    head_size=config.head_size,
                    bias=config.attention_bias != "none",
                    output_bias=config.attention_bias == "all",
                    norm_eps=config.eps if config.query_key_norm else None,
                    residual_std=residual_std,
                ),
                feed_forward=GatedFeedForward(width, config.feed_forward, init=init, residual_std=residual_std),
            )
            for _ in range(config.blocks)
        )
        self.final_norm = RMSNorm(width, init=init, eps=config.eps)
        self.language_model_head = None if config.tied_head else Linear(width, config.vocabulary, init=init, bias=False)

    def __call__(
        self,
        ids: Tensor,
        cache: Cache | None = None,
        *,
        last: bool = False,
        segments: Segments | None = None,
        rows: Tensor | None = None,
    ) -> Tensor:
        start, count = check_ids(ids, cache, segments, context=self.context, blocks=self.blocks_count)
        places = token_places(cache, segments)
        rotation = self.rotary(start, count) if places is None else self.rotary.at(places)
        x = self._embedded(self.token_embedding(ids))
        for layer, block in enumerate(self.blocks):
            x = self._through(block, x, layer_cache(cache, layer), rotation, segments)
        if cache is not None:
            cache.advance(count)
        x = self.final_norm(chosen(x, last=last, rows=rows))
        if self.language_model_head is None:
            return ops.linear(x, lowered(self.token_embedding.weight))
        return self.language_model_head(x)

    def config_dict(self) -> dict[str, object]:
        return asdict(self.config)
