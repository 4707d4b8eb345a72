"""Position-wise feed-forward layers."""

from __future__ import annotations

from turret.spi import GeluForm
from turret.tensor import Tensor, ops

from .init import INIT_STD, Init
from .linear import Linear
from .module import Module


class FeedForward(Module):
    """project(gelu(expand(x))) with biases. Source: Vaswani et al. 2017, eq. 2, with GELU."""

    def __init__(
        self, width: int, hidden: int, *, init: Init, form: GeluForm = "erf", residual_std: float = INIT_STD
    ) -> None:
        self.form: GeluForm = form
        self.expand = Linear(width, hidden, init=init)
        self.project = Linear(hidden, width, init=init, std=residual_std)

    def __call__(self, x: Tensor) -> Tensor:
        """x: (B, T, D); returns the same shape."""
        return self.project(ops.gelu(self.expand(x), form=self.form))


class GatedFeedForward(Module):
    """down(silu(gate(x)) * up(x)), no biases. Source: Shazeer 2020, eq. 6 (SwiGLU)."""

    def __init__(self, width: int, hidden: int, *, init: Init, residual_std: float = INIT_STD) -> None:
        self.gate = Linear(width, hidden, init=init, bias=False)
        self.up = Linear(width, hidden, init=init, bias=False)
        self.down = Linear(hidden, width, init=init, bias=False, std=residual_std)

    def __call__(self, x: Tensor) -> Tensor:
        """x: (B, T, D); returns the same shape."""
        return self.down(ops.gated_silu(self.gate(x), self.up(x)))
