"""The matmul slot."""

from __future__ import annotations

from turret.spi import DType

from .arrays import X, dot, like
from .place import Place
from .programs import program


class TpuMatmul:
    """Transposed operands are contracted where they lie; no copy is made of them."""

    def __init__(self, place: Place) -> None:
        self._place = place

    def matmul(self, a: X, b: X, /, *, transpose_a: bool = False, transpose_b: bool = False) -> X:
        return self._place.run(_matmul, a, b, transpose_a=transpose_a, transpose_b=transpose_b)

    def accumulation(self, dtype: DType, /) -> str:
        return "float32"


@program("transpose_a", "transpose_b")
def _matmul(a: X, b: X, *, transpose_a: bool, transpose_b: bool) -> X:
    batch = tuple(range(a.ndim - 2))
    left, right = a.ndim - (2 if transpose_a else 1), b.ndim - (1 if transpose_b else 2)
    return like(dot(a, b, (((left,), (right,)), (batch, batch))), a)
