"""The rotary position slot."""

from __future__ import annotations

from .arrays import geometry, suffix
from .library import X
from .place import Place


class CudaRope:
    """Both layouts are one kernel, told where the two of a pair lie; the gradient turns the other way."""

    def __init__(self, place: Place) -> None:
        self._place = place

    def rope(self, x: X, cos: X, sin: X, /, *, interleaved: bool) -> X:
        return self._turn(x, cos, sin, interleaved, 1.0)

    def rope_vjp(self, dy: X, cos: X, sin: X, /, *, interleaved: bool) -> X:
        return self._turn(dy, cos, sin, interleaved, -1.0)

    def _turn(self, x: X, cos: X, sin: X, interleaved: bool, direction: float) -> X:
        place = self._place
        out = place.empty(x.shape, x.dtype)
        half = x.shape[-1] // 2
        cos, sin = place.dense(cos), place.dense(sin)
        per_head = cos.reshape((*cos.shape[:-1], 1, half))
        x_first, out_first = (_first_of_pairs(each, interleaved) for each in (x, out))
        lie = geometry(x_first.shape, x_first, out_first, per_head)
        apart = 1 if interleaved else half
        x_gap, out_gap = (apart * (each.strides[-1] // each.dtype.itemsize) for each in (x, out))
        operands = x, x_gap, cos, sin, out, out_gap, direction, x_first.size, lie
        place.spread("rope", f"rope_{suffix(x)}", x_first.size, *operands)
        return out


def _first_of_pairs(x: X, interleaved: bool) -> X:
    """(..., d/2), a view."""
    pairs = slice(0, None, 2) if interleaved else slice(0, x.shape[-1] // 2)
    return x[:, :, :, pairs]
