"""The softmax slot."""

from __future__ import annotations

from .library import X
from .place import Place
from .rows import over_rows


class CudaSoftmax:
    """Rows are shifted by their maximum, so that exp sees nothing above 0."""

    def __init__(self, place: Place) -> None:
        self._place = place

    def softmax(self, x: X, /) -> X:
        return self._over_rows("softmax", x)

    def softmax_vjp(self, dy: X, y: X, /) -> X:
        return self._over_rows("softmax_vjp", dy, y)

    def log_softmax(self, x: X, /) -> X:
        return self._over_rows("log_softmax", x)

    def log_softmax_vjp(self, dy: X, y: X, /) -> X:
        return self._over_rows("log_softmax_vjp", dy, y)

    def _over_rows(self, name: str, *operands: X) -> X:
        place, like = self._place, operands[0]
        out = place.empty(like.shape, like.dtype)
        over_rows(place, "softmax", name, out, *(place.dense(x) for x in operands), out)
        return out
