"""Rotary positions from two products a half."""

from __future__ import annotations

from typing import Generic

from turret.spi import A, Required

from .ops import Ops


class DerivedRope(Generic[A]):
    """A pair (a, b) turns to (a cos - b sin, b cos + a sin). The gradient turns back: the same with -sin."""

    def __init__(self, required: Required[A]) -> None:
        self._ops = Ops(required)

    def rope(self, x: A, cos: A, sin: A, /, *, interleaved: bool) -> A:
        o, (b, t, h, d) = self._ops, x.shape
        half = (b, t, h, d // 2)
        axis = 4 if interleaved else 3  # where the two of a pair lie side by side
        one = (*half, 1) if interleaved else (b, t, h, 1, d // 2)
        pairs = o.reshape(o.wide(x), (*half, 2) if interleaved else (b, t, h, 2, d // 2))
        first, second = (o.reshape(o.cut(pairs, axis, i, i + 1), half) for i in (0, 1))
        c, s = (self._per_head(angles, first) for angles in (cos, sin))
        turned = (
            o.subtract(o.multiply(first, c), o.multiply(second, s)),
            o.add(o.multiply(second, c), o.multiply(first, s)),
        )
        joined = o.concatenate([o.reshape(part, one) for part in turned], axis=axis)
        return o.like(o.reshape(joined, x.shape), x)

    def rope_vjp(self, dy: A, cos: A, sin: A, /, *, interleaved: bool) -> A:
        return self.rope(dy, cos, self._ops.negative(sin), interleaved=interleaved)

    def _per_head(self, angles: A, x: A) -> A:
        """(T, d/2) or (B, T, d/2) to (1 or B, T, 1, d/2), in the dtype of x."""
        o = self._ops
        batch = 1 if len(angles.shape) == 2 else angles.shape[0]
        return o.like(o.reshape(angles, (batch, *angles.shape[-2:-1], 1, angles.shape[-1])), x)
