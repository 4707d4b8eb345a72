"""The softmax slot."""

from __future__ import annotations

from .arrays import X, div, like, mul, row_max, row_sum, sub, wide
from .library import lax
from .place import Place
from .programs import program


class TpuSoftmax:
    """Rows are shifted by their maximum, so that exp sees nothing above 0."""

    def __init__(self, place: Place) -> None:
        self._place = place

    def softmax(self, x: X, /) -> X:
        return self._place.run(_softmax, x)

    def softmax_vjp(self, dy: X, y: X, /) -> X:
        return self._place.run(_softmax_vjp, dy, y)

    def log_softmax(self, x: X, /) -> X:
        return self._place.run(_log_softmax, x)

    def log_softmax_vjp(self, dy: X, y: X, /) -> X:
        return self._place.run(_log_softmax_vjp, dy, y)


@program()
def _softmax(x: X) -> X:
    y = wide(x)
    weights = lax.exp(sub(y, row_max(y)))
    return like(div(weights, row_sum(weights)), x)


@program()
def _softmax_vjp(dy: X, y: X) -> X:
    wide_dy, wide_y = wide(dy), wide(y)
    return like(mul(wide_y, sub(wide_dy, row_sum(mul(wide_y, wide_dy)))), y)


@program()
def _log_softmax(x: X) -> X:
    y = wide(x)
    shifted = sub(y, row_max(y))
    return like(sub(shifted, lax.log(row_sum(lax.exp(shifted)))), x)


@program()
def _log_softmax_vjp(dy: X, y: X) -> X:
    wide_dy = wide(dy)
    return like(sub(wide_dy, mul(lax.exp(wide(y)), row_sum(wide_dy))), y)
