"""The rotary position slot."""

from __future__ import annotations

from .arrays import X, add, like, mul, sub, wide
from .library import lax
from .place import Place
from .programs import program


class TpuRope:
    """A pair (a, b) turns to (a cos - b sin, b cos + a sin). The gradient turns back: the same with -sin."""

    def __init__(self, place: Place) -> None:
        self._place = place

    def rope(self, x: X, cos: X, sin: X, /, *, interleaved: bool) -> X:
        return self._place.run(_turn, x, cos, sin, back=False, interleaved=interleaved)

    def rope_vjp(self, dy: X, cos: X, sin: X, /, *, interleaved: bool) -> X:
        return self._place.run(_turn, dy, cos, sin, back=True, interleaved=interleaved)


@program("back", "interleaved")
def _turn(x: X, cos: X, sin: X, *, back: bool, interleaved: bool) -> X:
    b, t, h, d = x.shape
    axis = 4 if interleaved else 3  # where the two of a pair lie side by side
    pairs = lax.reshape(wide(x), (b, t, h, d // 2, 2) if interleaved else (b, t, h, 2, d // 2))
    first, second = (lax.index_in_dim(pairs, i, axis, keepdims=False) for i in (0, 1))
    c, s = _per_head(cos, first), _per_head(lax.neg(sin) if back else sin, first)
    turned = sub(mul(first, c), mul(second, s)), add(mul(second, c), mul(first, s))
    joined = lax.concatenate([lax.expand_dims(part, (axis,)) for part in turned], axis)
    return like(lax.reshape(joined, x.shape), x)


def _per_head(angles: X, x: X) -> X:
    """(T, d/2) or (B, T, d/2) spread over the heads of x (B, T, H, d/2)."""
    axes = (1, 3) if angles.ndim == 2 else (0, 1, 3)
    return lax.broadcast_in_dim(angles, x.shape, axes)
