"""Truth of layer norm and RMS norm over the last axis, and of their derivatives."""

from __future__ import annotations

import math

import numpy as np

from .arrays import Array, quiet


@quiet
def layer_norm(x: Array, weight: Array, bias: Array, /, *, eps: float) -> tuple[Array, Array, Array]:
    """(x - mean) rstd weight + bias, with mean and rstd = 1 / sqrt(var + eps): (..., 1).

    x: (..., D), weight and bias: (D,). Source: Ba et al. 2016, eq. 4.
    """
    mean = x.mean(axis=-1, keepdims=True)
    centred = x - mean
    rstd = 1.0 / np.sqrt((centred * centred).mean(axis=-1, keepdims=True) + eps)
    return centred * rstd * weight + bias, mean, rstd


@quiet
def layer_norm_vjp(dy: Array, x: Array, weight: Array, mean: Array, rstd: Array, /) -> tuple[Array, Array, Array]:
    """Gradients for x, weight and bias.

    With n = (x - mean) rstd and g = dy weight: dx = rstd (g - mean(g) - n mean(g n)); dweight and dbias sum dy n and dy
    over all rows. Source: derivative of Ba et al. 2016, eq. 4.
    """
    normal = (x - mean) * rstd
    g = dy * weight
    along = (g * normal).mean(axis=-1, keepdims=True)
    dx = rstd * (g - g.mean(axis=-1, keepdims=True) - normal * along)
    return dx, _over_rows(dy * normal), _over_rows(dy)


@quiet
def rms_norm(x: Array, weight: Array, /, *, eps: float) -> tuple[Array, Array]:
    """x rstd weight, and rstd = 1 / sqrt(mean(x^2) + eps): (..., 1). Source: Zhang and Sennrich 2019, eq. 4."""
    rstd = 1.0 / np.sqrt((x * x).mean(axis=-1, keepdims=True) + eps)
    return x * rstd * weight, rstd


@quiet
def rms_norm_vjp(dy: Array, x: Array, weight: Array, rstd: Array, /) -> tuple[Array, Array]:
    """Gradients for x and weight.

    With n = x rstd and g = dy weight: dx = rstd (g - n mean(g n)); dweight sums dy n over all rows.
    Source: derivative of Zhang and Sennrich 2019, eq. 4.
    """
    normal = x * rstd
    g = dy * weight
    dx = rstd * (g - normal * (g * normal).mean(axis=-1, keepdims=True))
    return dx, _over_rows(dy * normal)


def _over_rows(x: Array) -> Array:
    """(..., D) to (D,)."""
    return x.reshape((math.prod(x.shape[:-1]), x.shape[-1])).sum(axis=0)
