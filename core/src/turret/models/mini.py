"""The second family: grouped heads, rotary positions, RMSNorm, gated SiLU, no biases, a tied head."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass

from turret.nn import Block, CausalSelfAttention, Embedding, GatedFeedForward, Init, Linear, ModuleList, RMSNorm, Rotary
from turret.nn.attention import check_heads
from turret.nn.init import INIT_STD
from turret.nn.precision import lowered
from turret.spi import ConfigError
from turret.tensor import Tensor, ops

from .base import Cache, LanguageModel, check_ids, layer_cache
from .config import require_flags, require_positive, require_sizes


@dataclass(frozen=True, slots=True, kw_only=True)
class MiniConfig:
    """Sizes of a mini transformer."""

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
        check_heads(self.width, self.heads, self.kv_heads)
        if (self.width // self.heads) % 2:
            raise ConfigError(f"mini: head size {self.width // self.heads} is odd; rotary positions turn pairs")
        require_positive("mini", eps=self.eps, rope_theta=self.rope_theta)
        require_flags("mini", tied_head=self.tied_head)

    def parameter_count(self) -> int:
        """Closed form: VD + L(2D^2 + 2DE + 3DF + 2D) + D, plus VD for an untied head."""
        v, d, f = self.vocabulary, self.width, self.feed_forward
        e = self.kv_heads * (d // self.heads)
        block = 2 * d * d + 2 * d * e + 3 * d * f + 2 * d
        return v * d + self.blocks * block + d + (0 if self.tied_head else v * d)


class Mini(LanguageModel):
    """a = x + attention(RMS(x)); y = a + gated FFN(RMS(a)), after token embeddings; RMS and head at the end."""

    kind = "mini"

    def __init__(self, config: MiniConfig, *, seed: int = 0) -> None:
        self.config = config
        self.vocabulary, self.context = config.vocabulary, config.context
        self.blocks_count, self.kv_heads = config.blocks, config.kv_heads
        self.head_size = config.width // config.heads
        init, width = Init(seed), config.width
        residual_std = INIT_STD / math.sqrt(2 * config.blocks)
        self.token_embedding = Embedding(config.vocabulary, width, init=init)
        self.rotary = Rotary(config.context, self.head_size, theta=config.rope_theta)
        self.blocks = ModuleList(
            Block(
                norm=lambda: RMSNorm(width, init=init, eps=config.eps),
                attention=CausalSelfAttention(
                    width, config.heads, init=init, kv_heads=config.kv_heads, bias=False, residual_std=residual_std
                ),
                feed_forward=GatedFeedForward(width, config.feed_forward, init=init, residual_std=residual_std),
            )
            for _ in range(config.blocks)
        )
        self.final_norm = RMSNorm(width, init=init, eps=config.eps)
        self.language_model_head = None if config.tied_head else Linear(width, config.vocabulary, init=init, bias=False)

    def __call__(self, ids: Tensor, cache: Cache | None = None, *, last: bool = False) -> Tensor:
        start, count = check_ids(ids, cache, context=self.context, blocks=self.blocks_count)
        places = None if cache is None else cache.places
        rotation = self.rotary(start, count) if places is None else self.rotary.at(places)
        x = self._embedded(self.token_embedding(ids))
        for layer, block in enumerate(self.blocks):
            x = self._through(block, x, layer_cache(cache, layer), rotation)
        if cache is not None:
            cache.advance(count)
        x = self.final_norm(x[:, count - 1 :] if last else x)
        if self.language_model_head is None:
            return ops.linear(x, lowered(self.token_embedding.weight))
        return self.language_model_head(x)

    def config_dict(self) -> dict[str, object]:
        return asdict(self.config)
