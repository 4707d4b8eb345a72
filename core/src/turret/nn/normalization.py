"""Normalization layers over the last axis."""

from __future__ import annotations

from turret.tensor import Parameter, Tensor, ops

from .init import Init
from .module import Module
from .precision import lowered


class LayerNorm(Module):
    """(x - mean) / sqrt(var + eps) * scale + bias. scale and bias: (width,). Source: Ba et al. 2016, eq. 4."""

    def __init__(self, width: int, *, init: Init, eps: float = 1e-5) -> None:
        self.eps = eps
        self.scale = Parameter(init.ones((width,)))
        self.bias = Parameter(init.zeros((width,)))

    def __call__(self, x: Tensor) -> Tensor:
        """x: (..., width); returns the same shape."""
        return ops.layer_norm(x, lowered(self.scale), lowered(self.bias), eps=self.eps)


class RMSNorm(Module):
    """x / sqrt(mean(x^2) + eps) * scale. scale: (width,). Source: Zhang and Sennrich 2019, eq. 4."""

    def __init__(self, width: int, *, init: Init, eps: float = 1e-5) -> None:
        self.eps = eps
        self.scale = Parameter(init.ones((width,)))

    def __call__(self, x: Tensor) -> Tensor:
        """x: (..., width); returns the same shape."""
        return ops.rms_norm(x, lowered(self.scale), eps=self.eps)
