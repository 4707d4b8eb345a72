"""The element-wise slot."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .arrays import X, like, spread, wide
from .library import lax
from .place import Place
from .programs import program

Operand = X | float
Function = Callable[..., X]


def _binary(function: Function) -> Function:
    """A function of two operands of one dtype and of shapes that broadcast."""

    @program()
    def apply(a: X, b: X) -> X:
        return function(*spread(*_alike(a, b)))

    return apply


def _unary(function: Function) -> Function:
    """A function whose halves are computed in float32 and rounded once."""

    @program()
    def apply(x: X) -> X:
        return like(function(wide(x)), x)

    return apply


def _alike(a: Any, b: Any) -> tuple[X, X]:
    """A Python scalar takes the dtype of the array it meets; it comes here as a weak array of rank 0."""
    if a.dtype == b.dtype:
        return a, b
    return (like(a, b), b) if a.weak_type or (not a.shape and not b.weak_type) else (a, like(b, a))


def _quotient(a: X, b: X) -> X:
    """XLA multiplies by the reciprocal of a divisor it knows to be stretched: subnormal and 0 for the largest ones."""
    quotient: X = lax.div(a, lax.optimization_barrier(b))  # type: ignore[no-untyped-call]  # JAX has no types for it
    return quotient


_add, _subtract, _multiply, _divide = map(_binary, (lax.add, lax.sub, lax.mul, _quotient))
_maximum, _minimum = _binary(lax.max), _binary(lax.min)
_equal, _less, _less_equal = map(_binary, (lax.eq, lax.lt, lax.le))
_exp, _log, _sqrt, _rsqrt = map(_unary, (lax.exp, lax.log, lax.sqrt, lax.rsqrt))
_tanh, _erf = _unary(lax.tanh), _unary(lax.erf)
_negative, _isfinite, _logical_and = (program()(each) for each in (lax.neg, lax.is_finite, _binary(lax.bitwise_and)))


@program()
def _where(condition: X, a: X, b: X) -> X:
    return lax.select(*spread(condition, *_alike(a, b)))


class TpuElementwise:
    """One program a call; a scalar is an argument of it, so that another value is no other program."""

    def __init__(self, place: Place) -> None:
        self._run = place.run

    def add(self, a: Operand, b: Operand, /) -> X:
        return self._run(_add, a, b)

    def subtract(self, a: Operand, b: Operand, /) -> X:
        return self._run(_subtract, a, b)

    def multiply(self, a: Operand, b: Operand, /) -> X:
        return self._run(_multiply, a, b)

    def divide(self, a: Operand, b: Operand, /) -> X:
        return self._run(_divide, a, b)

    def maximum(self, a: Operand, b: Operand, /) -> X:
        return self._run(_maximum, a, b)

    def minimum(self, a: Operand, b: Operand, /) -> X:
        return self._run(_minimum, a, b)

    def negative(self, x: X, /) -> X:
        return self._run(_negative, x)

    def exp(self, x: X, /) -> X:
        return self._run(_exp, x)

    def log(self, x: X, /) -> X:
        return self._run(_log, x)

    def sqrt(self, x: X, /) -> X:
        return self._run(_sqrt, x)

    def rsqrt(self, x: X, /) -> X:
        return self._run(_rsqrt, x)

    def tanh(self, x: X, /) -> X:
        return self._run(_tanh, x)

    def erf(self, x: X, /) -> X:
        return self._run(_erf, x)

    def isfinite(self, x: X, /) -> X:
        return self._run(_isfinite, x)

    def equal(self, a: Operand, b: Operand, /) -> X:
        return self._run(_equal, a, b)

    def less(self, a: Operand, b: Operand, /) -> X:
        return self._run(_less, a, b)

    def less_equal(self, a: Operand, b: Operand, /) -> X:
        return self._run(_less_equal, a, b)

    def logical_and(self, a: X, b: X, /) -> X:
        return self._run(_logical_and, a, b)

    def where(self, condition: X, a: Operand, b: Operand, /) -> X:
        return self._run(_where, condition, a, b)
