"""The rotary position slot."""

from __future__ import annotations

import mlx.core as mx

from .arrays import like, wide
from .layout import cut
from .stream import Stream, X


class MetalRope:
    """A pair (a, b) turns to (a cos - b sin, b cos + a sin). The gradient turns back: the same with -sin."""

    # `mx.fast.rope` makes its own angles, from one offset: not the given ones, nor positions of each row's own.

    def __init__(self, do: Stream) -> None:
        self._do = do

    def rope(self, x: X, cos: X, sin: X, /, *, interleaved: bool) -> X:
        do, (b, t, h, d) = self._do, x.shape
        # where the two of a pair lie side by side
        shape, axis = ((b, t, h, d // 2, 2), 4) if interleaved else ((b, t, h, 2, d // 2), 3)
        pairs = do(mx.reshape, wide(do, x), shape)
        half = pairs.shape[axis] // 2
        first, second = cut(do, pairs, axis, 0, half), cut(do, pairs, axis, half, 2 * half)
        c, s = (_per_head(do, angles, axis) for angles in (cos, sin))
        turned = (
            do(mx.subtract, do(mx.multiply, first, c), do(mx.multiply, second, s)),
            do(mx.add, do(mx.multiply, second, c), do(mx.multiply, first, s)),
        )
        return like(do, do(mx.reshape, do(mx.concatenate, turned, axis=axis), x.shape), x)

    def rope_vjp(self, dy: X, cos: X, sin: X, /, *, interleaved: bool) -> X:
        return self.rope(dy, cos, self._do(mx.negative, sin), interleaved=interleaved)


def _per_head(do: Stream, angles: X, axis: int) -> X:
    """(T, d/2) or (B, T, d/2) with an axis for heads and one, of size 1, at `axis`."""
    batch = 1 if angles.ndim == 2 else angles.shape[0]
    t, half = angles.shape[-2:]
    return do(mx.reshape, angles, (batch, t, 1, half, 1) if axis == 4 else (batch, t, 1, 1, half))
