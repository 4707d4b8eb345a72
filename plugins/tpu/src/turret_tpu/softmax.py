"""The softmax slot."""

from __future__ import annotations

from .arrays import X, like, row_max, row_sum, wide
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
    weights = lax.exp(y - row_max(y))
    return like(weights / row_sum(weights), x)


@program()
def _softmax_vjp(dy: X, y: X) -> X:
    wide_dy, wide_y = wide(dy), wide(y)
    return like(wide_y * (wide_dy - row_sum(wide_y * wide_dy)), y)


@program()
def _log_softmax(x: X) -> X:
    y = wide(x)
    shifted = y - row_max(y)
    return like(shifted - lax.log(row_sum(lax.exp(shifted))), x)


@program()
def _log_softmax_vjp(dy: X, y: X) -> X:
    wide_dy = wide(dy)
    return like(wide_dy - lax.exp(wide(y)) * row_sum(wide_dy), y)
