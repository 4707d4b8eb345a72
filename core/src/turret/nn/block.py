"""The pre-normalized transformer block."""

from __future__ import annotations

from collections.abc import Callable

from turret.tensor import Tensor

from .attention import CausalSelfAttention, LayerCache
from .feed_forward import FeedForward, GatedFeedForward
from .module import Module
from .normalization import LayerNorm, RMSNorm
from .regularization import dropout
from .rotary import Rotation
from .segments import Segments


class Block(Module):
    """a = x + attention(norm(x)); y = a + feed_forward(norm(a)). Source: Xiong et al. 2020, figure 1b.

    `dropout`: the rate at which what is added to x and a is dropped inside `dropping`.
    """

    def __init__(
        self,
        *,
        norm: Callable[[], LayerNorm | RMSNorm],
        attention: CausalSelfAttention,
        feed_forward: FeedForward | GatedFeedForward,
    ) -> None:
        self.attention_norm = norm()
        self.attention = attention
        self.feed_forward_norm = norm()
        self.feed_forward = feed_forward
        self.dropout = 0.0

    def __call__(
        self,
        x: Tensor,
        cache: LayerCache | None = None,
        rotation: Rotation | None = None,
        segments: Segments | None = None,
    ) -> Tensor:
        """x: (B, T, D); returns the same shape. cache, rotation and segments: as in CausalSelfAttention."""
        a = x + dropout(self.attention(self.attention_norm(x), cache, rotation, segments), self.dropout)
        return a + dropout(self.feed_forward(self.feed_forward_norm(a)), self.dropout)
