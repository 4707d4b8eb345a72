"""The linear slot."""

from __future__ import annotations

from collections import Counter

from turret.derived.linear import DerivedLinear
from turret.spi import Required

from .arrays import Rest, X, dense, kernel_ready
from .products import FEW, multiply, multiply_few, sum_rows


class CpuLinear:
    """Our own product with the bias added in its registers."""

    def __init__(self, required: Required[X], calls: Counter[str]) -> None:
        self._rest = Rest("linear", DerivedLinear(required), calls)

    def linear(self, x: X, weight: X, bias: X | None, /) -> X:
        if not (kernel_ready(x) and kernel_ready(weight)):
            return self._rest().linear(x, weight, bias)
        outs, ins = weight.shape
        rows, shape = x.size // ins, (*x.shape[:-1], outs)
        start = None if bias is None else dense(bias)
        if rows <= FEW:
            return multiply_few(dense(x).reshape(rows, ins), dense(weight), start).reshape(shape)
        return multiply(dense(x), False, dense(weight), True, start, (1, rows, outs, ins)).reshape(shape)

    def linear_vjp_input(self, dy: X, weight: X, /) -> X:
        if not (kernel_ready(dy) and kernel_ready(weight)):
            return self._rest().linear_vjp_input(dy, weight)
        outs, ins = weight.shape
        shape = (*dy.shape[:-1], ins)
        return multiply(dense(dy), False, dense(weight), False, None, (1, dy.size // outs, ins, outs)).reshape(shape)

    def linear_vjp_weight(self, dy: X, x: X, /) -> tuple[X, X]:
        if not (kernel_ready(dy) and kernel_ready(x)):
            return self._rest().linear_vjp_weight(dy, x)
        outs, ins = dy.shape[-1], x.shape[-1]
        rows, dy = dy.size // outs, dense(dy)
        dweight = multiply(dy, True, dense(x), False, None, (1, outs, ins, rows))
        return dweight.reshape(outs, ins), sum_rows(dy, rows, outs)
