"""The linear layer from one matrix product a piece."""

from __future__ import annotations

from typing import Generic

from turret.spi import A, Required

from .ops import Ops


class DerivedLinear(Generic[A]):
    """All leading axes of x fold into rows. Halves are multiplied as halves: `Matmul` sums in float32 or better."""

    def __init__(self, required: Required[A]) -> None:
        self._ops = Ops(required)

    def linear(self, x: A, weight: A, bias: A | None, /) -> A:
        o = self._ops
        y = o.matmul(o.rows(x), weight, transpose_b=True)
        if bias is not None:
            y = o.like(o.add(o.wide(y), o.wide(bias)), x)
        return o.reshape(y, (*x.shape[:-1], weight.shape[0]))

    def linear_vjp_input(self, dy: A, weight: A, /) -> A:
        o = self._ops
        return o.reshape(o.matmul(o.rows(dy), weight), (*dy.shape[:-1], weight.shape[1]))

    def linear_vjp_weight(self, dy: A, x: A, /) -> tuple[A, A]:
        o = self._ops
        return o.matmul(o.rows(dy), o.rows(x), transpose_a=True), o.sum_rows(dy)
