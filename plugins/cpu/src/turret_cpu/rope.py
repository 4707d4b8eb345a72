"""The rotary position slot."""

from __future__ import annotations

from collections import Counter

from turret.derived.rope import DerivedRope
from turret.spi import Required

from .arrays import Rest, X, dense, kernel_ready
from .kernels.positions import rope
from .memory import empty
from .threads import POOL


class CpuRope:
    """Each pair is read and written once."""

    def __init__(self, required: Required[X], calls: Counter[str]) -> None:
        self._rest = Rest("rope", DerivedRope(required), calls)

    def rope(self, x: X, cos: X, sin: X, /, *, interleaved: bool) -> X:
        return (
            _turn(x, cos, sin, 1.0, interleaved)
            if kernel_ready(x)
            else self._rest().rope(x, cos, sin, interleaved=interleaved)
        )

    def rope_vjp(self, dy: X, cos: X, sin: X, /, *, interleaved: bool) -> X:
        if kernel_ready(dy):
            return _turn(dy, cos, sin, -1.0, interleaved)
        return self._rest().rope_vjp(dy, cos, sin, interleaved=interleaved)


def _turn(x: X, cos: X, sin: X, sign: float, interleaved: bool) -> X:
    y, (batch, count, heads, d) = empty(x.shape), x.shape
    per_row = int(cos.ndim == 3)
    POOL.run(
        rope, 0.5 * x.size, dense(x), dense(cos), dense(sin), y, batch, count, heads, d, per_row, sign, int(interleaved)
    )
    return y
