"""The first family: learned absolute positions, LayerNorm, GELU, biases, an untied head."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass

from turret.nn import Block, CausalSelfAttention, Embedding, FeedForward, Init, LayerNorm, Linear, ModuleList, Segments
from turret.nn.attention import check_heads
from turret.nn.init import INIT_STD
from turret.nn.precision import lowered
from turret.spi import ConfigError, GeluForm
from turret.tensor import Tensor, ops

from .base import Cache, LanguageModel, check_ids, chosen, layer_cache, token_places
from .config import require_flags, require_positive, require_sizes


@dataclass(frozen=True, slots=True, kw_only=True)
class DecoderConfig:
    """Sizes of a decoder. The defaults are the first model: 19,419 parameters at a vocabulary of 27."""

    vocabulary: int
    context: int = 16
    width: int = 32
    heads: int = 4
    kv_heads: int | None = None
    blocks: int = 2
    feed_forward: int = 64
    gelu: GeluForm = "erf"
    eps: float = 1e-5
    tied_head: bool = False
    head_bias: bool = True

    def __post_init__(self) -> None:
        require_sizes(
            "decoder",
            vocabulary=self.vocabulary,
            context=self.context,
            width=self.width,
            heads=self.heads,
            kv_heads=self.key_value_heads,
            blocks=self.blocks,
            feed_forward=self.feed_forward,
        )
        check_heads(self.width, self.heads, self.key_value_heads)
        if self.gelu not in ("erf", "tanh"):
            raise ConfigError(f"decoder: gelu is {self.gelu!r}; wanted 'erf' or 'tanh'")
        require_positive("decoder", eps=self.eps)
        require_flags("decoder", tied_head=self.tied_head, head_bias=self.head_bias)
        if self.tied_head and self.head_bias:
            raise ConfigError("decoder: a tied head has no bias; set head_bias to false with tied_head")

    @property
    def key_value_heads(self) -> int:
        return self.heads if self.kv_heads is None else self.kv_heads

    def parameter_count(self) -> int:
        """Closed form: VD + CD + L(2D^2 + 2DE + 2E + 2DF + F + 7D) + 2D, plus VD and V for an untied head with bias."""
        v, c, d, f = self.vocabulary, self.context, self.width, self.feed_forward
        e = self.key_value_heads * (d // self.heads)
        attention = 2 * d * d + 2 * d * e + 2 * d + 2 * e
        block = attention + 2 * d * f + f + d + 4 * d
        head = (0 if self.tied_head else v * d) + (v if self.head_bias else 0)
        return v * d + c * d + self.blocks * block + 2 * d + head


class Decoder(LanguageModel):
    """a = x + attention(LN(x)); y = a + FFN(LN(a)), after token and position embeddings; LN and head at the end."""

    kind = "decoder"

    def __init__(self, config: DecoderConfig, *, seed: int = 0, init: Init | None = None) -> None:
        """init: where parameters come from; by default they are drawn from `seed`."""
        self.config = config
        self.vocabulary, self.context = config.vocabulary, config.context
        self.blocks_count, self.kv_heads = config.blocks, config.key_value_heads
        self.head_size = config.width // config.heads
        init, width = Init(seed) if init is None else init, config.width
        residual_std = INIT_STD / math.sqrt(2 * config.blocks)
        self.token_embedding = Embedding(config.vocabulary, width, init=init)
        self.position_embedding = Embedding(config.context, width, init=init)
        self.blocks = ModuleList(
            Block(
                norm=lambda: LayerNorm(width, init=init, eps=config.eps),
                attention=CausalSelfAttention(
                    width, config.heads, init=init, kv_heads=config.key_value_heads, residual_std=residual_std
                ),
                feed_forward=FeedForward(
                    width, config.feed_forward, init=init, form=config.gelu, residual_std=residual_std
                ),
            )
            for _ in range(config.blocks)
        )
        self.final_norm = LayerNorm(width, init=init, eps=config.eps)
        self.language_model_head = (
            None if config.tied_head else Linear(width, config.vocabulary, init=init, bias=config.head_bias)
        )

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
        if places is None:
            positions = lowered(self.position_embedding.weight[start : start + count])
        else:
            positions = self.position_embedding(places)
        x = self._embedded(self.token_embedding(ids) + positions)
        for layer, block in enumerate(self.blocks):
            x = self._through(block, x, layer_cache(cache, layer), segments=segments)
        if cache is not None:
            cache.advance(count)
        x = self.final_norm(chosen(x, last=last, rows=rows))
        if self.language_model_head is None:
            return ops.linear(x, lowered(self.token_embedding.weight))
        return self.language_model_head(x)

    def config_dict(self) -> dict[str, object]:
        return asdict(self.config)
