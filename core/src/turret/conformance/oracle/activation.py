"""Truth of the non-linearities of feed-forward layers and of their derivatives."""

from __future__ import annotations

import math

import numpy as np

from turret.spi import GeluForm

from .arrays import Array, quiet
from .special import erf

TANH_SCALE = math.sqrt(2 / math.pi)
TANH_CUBE = 0.044715


@quiet
def gelu(x: Array, /, *, form: GeluForm) -> Array:
    """x Phi(x) with the normal distribution Phi ("erf"), or with its approximation by tanh ("tanh").

    Source: Hendrycks and Gimpel 2016, eq. 2 and the approximation after it.
    """
    if form == "erf":
        return x * _normal_distribution(x)
    return 0.5 * x * (1.0 + np.tanh(TANH_SCALE * (x + TANH_CUBE * (x * x * x))))


@quiet
def gelu_vjp(dy: Array, x: Array, /, *, form: GeluForm) -> Array:
    """dy (Phi(x) + x phi(x)), phi the normal density; for "tanh" the derivative of that formula.

    Source: product and chain rule on Hendrycks and Gimpel 2016, eq. 2 and the approximation after it.
    """
    if form == "erf":
        density = np.exp(-0.5 * (x * x)) / math.sqrt(2 * math.pi)
        return dy * (_normal_distribution(x) + x * density)
    t = np.tanh(TANH_SCALE * (x + TANH_CUBE * (x * x * x)))
    inner = TANH_SCALE * (1.0 + 3 * TANH_CUBE * (x * x))
    return dy * (0.5 * (1.0 + t) + 0.5 * x * (1.0 - t * t) * inner)


@quiet
def silu(x: Array, /) -> Array:
    """x sigmoid(x). Source: Elfwing et al. 2017, eq. 5."""
    return x * _sigmoid(x)


@quiet
def silu_vjp(dy: Array, x: Array, /) -> Array:
    """dy s (1 + x (1 - s)) with s = sigmoid(x). Source: derivative of Elfwing et al. 2017, eq. 5."""
    s = _sigmoid(x)
    return dy * s * (1.0 + x * (1.0 - s))


@quiet
def gated_silu(gate: Array, up: Array, /) -> Array:
    """silu(gate) * up. Source: Shazeer 2020, eq. 6."""
    return silu(gate) * up


@quiet
def gated_silu_vjp(dy: Array, gate: Array, up: Array, /) -> tuple[Array, Array]:
    """Gradients for gate and up. Source: product rule on Shazeer 2020, eq. 6."""
    return silu_vjp(dy * up, gate), dy * silu(gate)


def _normal_distribution(x: Array) -> Array:
    return 0.5 * (1.0 + erf(x / math.sqrt(2)))


def _sigmoid(x: Array) -> Array:
    """1 / (1 + e^-x), with an exponent that cannot overflow."""
    e = np.exp(-np.abs(x))
    return np.where(x >= 0, 1.0, e) / (1.0 + e)
