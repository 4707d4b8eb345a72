"""The element-wise slot: MLX's functions, transcendental ones in float32 throughout."""

from __future__ import annotations

from collections.abc import Callable

import mlx.core as mx

from .arrays import like, wide
from .mathematics import erf, exp
from .stream import Stream, X

Operand = X | float


class MetalElementwise:
    """One rounding per result, also for halves: + - * are exact before it, the rest goes through float32."""

    def __init__(self, do: Stream) -> None:
        self._do = do

    def add(self, a: Operand, b: Operand, /) -> X:
        return self._do(mx.add, a, b)

    def subtract(self, a: Operand, b: Operand, /) -> X:
        return self._do(mx.subtract, a, b)

    def multiply(self, a: Operand, b: Operand, /) -> X:
        return self._do(mx.multiply, a, b)

    def divide(self, a: Operand, b: Operand, /) -> X:
        return self._do(mx.divide, a, b)

    def maximum(self, a: Operand, b: Operand, /) -> X:
        return self._do(mx.maximum, a, b)

    def minimum(self, a: Operand, b: Operand, /) -> X:
        return self._do(mx.minimum, a, b)

    def negative(self, x: X, /) -> X:
        return self._do(mx.negative, x)

    def exp(self, x: X, /) -> X:
        return like(self._do, exp(self._do, wide(self._do, x)), x)

    def log(self, x: X, /) -> X:
        return self._in_float32(mx.log, x)

    def sqrt(self, x: X, /) -> X:
        return self._in_float32(mx.sqrt, x)

    def rsqrt(self, x: X, /) -> X:
        return self._in_float32(mx.rsqrt, x)

    def tanh(self, x: X, /) -> X:
        return self._in_float32(mx.tanh, x)

    def erf(self, x: X, /) -> X:
        return like(self._do, erf(self._do, wide(self._do, x)), x)

    def isfinite(self, x: X, /) -> X:
        return self._do(mx.isfinite, x)

    def equal(self, a: Operand, b: Operand, /) -> X:
        return self._do(mx.equal, a, b)

    def less(self, a: Operand, b: Operand, /) -> X:
        return self._do(mx.less, a, b)

    def less_equal(self, a: Operand, b: Operand, /) -> X:
        return self._do(mx.less_equal, a, b)

    def logical_and(self, a: X, b: X, /) -> X:
        return self._do(mx.logical_and, a, b)

    def where(self, condition: X, a: Operand, b: Operand, /) -> X:
        return self._do(mx.where, condition, a, b)

    def _in_float32(self, function: Callable[..., X], x: X) -> X:
        return like(self._do, self._do(function, wide(self._do, x)), x)
