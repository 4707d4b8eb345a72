"""The linear slot."""

from __future__ import annotations

from .arrays import X, add, column_sum, dot, like, rows, wide
from .library import lax
from .place import Place
from .programs import program


class TpuLinear:
    """All leading axes of x fold into rows: one product of matrices a call, which contracts them where they lie."""

    def __init__(self, place: Place) -> None:
        self._place = place

    def linear(self, x: X, weight: X, bias: X | None, /) -> X:
        return self._place.run(_linear, x, weight, bias)

    def linear_vjp_input(self, dy: X, weight: X, /) -> X:
        return self._place.run(_linear_vjp_input, dy, weight)

    def linear_vjp_weight(self, dy: X, x: X, /) -> tuple[X, X]:
        return self._place.run(_linear_vjp_weight, dy, x)


@program()
def _linear(x: X, weight: X, bias: X | None) -> X:
    y = dot(rows(x), weight, (((1,), (1,)), ((), ())))
    if bias is not None:
        y = add(y, wide(bias))
    return lax.reshape(like(y, x), (*x.shape[:-1], weight.shape[0]))


@program()
def _linear_vjp_input(dy: X, weight: X) -> X:
    dx = dot(rows(dy), weight, (((1,), (0,)), ((), ())))
    return lax.reshape(like(dx, dy), (*dy.shape[:-1], weight.shape[1]))


@program()
def _linear_vjp_weight(dy: X, x: X) -> tuple[X, X]:
    dweight = dot(rows(dy), rows(x), (((0,), (0,)), ((), ())))
    return like(dweight, dy), like(column_sum(wide(dy)), dy)
