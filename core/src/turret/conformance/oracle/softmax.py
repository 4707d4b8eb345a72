"""Truth of softmax and log-softmax over the last axis, and of their derivatives."""

from __future__ import annotations

import numpy as np

from .arrays import Array, quiet


@quiet
def softmax(x: Array, /) -> Array:
    """e^x over its sum, shifted by the maximum. Source: Goodfellow et al. 2016, eq. 6.29."""
    e = np.exp(x - x.max(axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True)


@quiet
def softmax_vjp(dy: Array, y: Array, /) -> Array:
    """y (dy - sum(dy y)), from dy_i / dx_j = y_i (delta_ij - y_j). Source: Bishop 2006, eq. 4.106."""
    return y * (dy - (dy * y).sum(axis=-1, keepdims=True))


@quiet
def log_softmax(x: Array, /) -> Array:
    """x - log(sum(e^x)), shifted by the maximum. Source: Goodfellow et al. 2016, eq. 6.30."""
    shifted = x - x.max(axis=-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))


@quiet
def log_softmax_vjp(dy: Array, y: Array, /) -> Array:
    """dy - e^y sum(dy), from dy_i / dx_j = delta_ij - e^(y_j).

    Source: derivative of Goodfellow et al. 2016, eq. 6.30.
    """
    return dy - np.exp(y) * dy.sum(axis=-1, keepdims=True)
