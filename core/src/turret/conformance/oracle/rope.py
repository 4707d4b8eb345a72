"""Truth of rotary positions and of their derivative."""

from __future__ import annotations

import numpy as np

from .arrays import Array, quiet


@quiet
def rope(x: Array, cos: Array, sin: Array, /, *, interleaved: bool) -> Array:
    """The pair (a, b) of each position turned by its angle: (a cos - b sin, a sin + b cos).

    x: (B, T, H, d); cos and sin: (T, d/2) or (B, T, d/2). Pairs are (2i, 2i + 1), or (i, i + d/2) where not
    `interleaved`. Source: Su et al. 2021, eq. 15.
    """
    half = x.shape[-1] // 2
    a, b = (x[..., 0::2], x[..., 1::2]) if interleaved else (x[..., :half], x[..., half:])
    c, s = _beside_heads(cos), _beside_heads(sin)
    turned = [a * c - b * s, a * s + b * c]
    return np.stack(turned, axis=-1).reshape(x.shape) if interleaved else np.concatenate(turned, axis=-1)


@quiet
def rope_vjp(dy: Array, cos: Array, sin: Array, /, *, interleaved: bool) -> Array:
    """The opposite turn: a rotation's transpose is its inverse. Source: Su et al. 2021, eq. 15, transposed."""
    return rope(dy, cos, -sin, interleaved=interleaved)


def _beside_heads(angles: Array) -> Array:
    """(T, d/2) or (B, T, d/2) to (1 or B, T, 1, d/2)."""
    *batch, length, half = angles.shape
    return angles.reshape((batch[0] if batch else 1, length, 1, half))
