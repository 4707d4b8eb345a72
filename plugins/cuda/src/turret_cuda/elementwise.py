"""The element-wise slot: one kernel an operation, operands read where they lie."""

from __future__ import annotations

from typing import Any

import cupy
import numpy as np

from .arrays import BOOL, GEOMETRY, SUFFIXES, Host, Native, by_value, geometry
from .library import X
from .place import Place
from .storage import word

Operand = X | float

_alike = np.zeros((), GEOMETRY)
_alike["rank"] = -1
ALIKE = by_value(_alike)


class CudaElementwise:
    """One rounding per result, halves computed in float32; broadcasting copies nothing."""

    def __init__(self, place: Place) -> None:
        self._place = place

    def add(self, a: Operand, b: Operand, /) -> X:
        return self._binary("add", a, b)

    def subtract(self, a: Operand, b: Operand, /) -> X:
        return self._binary("subtract", a, b)

    def multiply(self, a: Operand, b: Operand, /) -> X:
        return self._binary("multiply", a, b)

    def divide(self, a: Operand, b: Operand, /) -> X:
        return self._binary("divide", a, b)

    def maximum(self, a: Operand, b: Operand, /) -> X:
        return self._binary("maximum", a, b)

    def minimum(self, a: Operand, b: Operand, /) -> X:
        return self._binary("minimum", a, b)

    def negative(self, x: X, /) -> X:
        return self._unary("negative", x)

    def exp(self, x: X, /) -> X:
        return self._unary("exp", x)

    def log(self, x: X, /) -> X:
        return self._unary("log", x)

    def sqrt(self, x: X, /) -> X:
        return self._unary("sqrt", x)

    def rsqrt(self, x: X, /) -> X:
        return self._unary("rsqrt", x)

    def tanh(self, x: X, /) -> X:
        return self._unary("tanh", x)

    def erf(self, x: X, /) -> X:
        return self._unary("erf", x)

    def isfinite(self, x: X, /) -> X:
        return self._unary("isfinite", x, BOOL)

    def equal(self, a: Operand, b: Operand, /) -> X:
        return self._binary("equal", a, b, BOOL)

    def less(self, a: Operand, b: Operand, /) -> X:
        return self._binary("less", a, b, BOOL)

    def less_equal(self, a: Operand, b: Operand, /) -> X:
        return self._binary("less_equal", a, b, BOOL)

    def logical_and(self, a: X, b: X, /) -> X:
        return self._binary("logical_and", a, b)

    def where(self, condition: X, a: Operand, b: Operand, /) -> X:
        dtype = next(x.dtype for x in (a, b) if isinstance(x, cupy.ndarray))
        operands = [self._operand(x, dtype) for x in (a, b)]
        arrays = [condition, *(array for array, _ in operands)]
        out, lie = self._result(arrays, dtype)
        (a, a_word), (b, b_word) = operands
        self._place.spread(
            *("elementwise", f"where_{dtype.itemsize}", out.size),
            *(condition, a, a_word, b, b_word, out, out.size, lie),
        )
        return out

    def _unary(self, operation: str, x: X, result: Native | None = None) -> X:
        out, lie = self._result([x], result or x.dtype)
        self._place.spread("elementwise", f"{operation}_{SUFFIXES[x.dtype]}", out.size, x, out, out.size, lie)
        return out

    def _binary(self, operation: str, a: Operand, b: Operand, result: Native | None = None) -> X:
        dtype = a.dtype if isinstance(a, cupy.ndarray) else b.dtype  # type: ignore[union-attr]  # one is an array
        (left, left_word), (right, right_word) = self._operand(a, dtype), self._operand(b, dtype)
        out, lie = self._result([left, right], result or dtype)
        self._place.spread(
            *("elementwise", f"{operation}_{SUFFIXES[dtype]}", out.size),
            *(left, left_word, right, right_word, out, out.size, lie),
        )
        return out

    def _operand(self, x: Operand, dtype: Native) -> tuple[X | None, int]:
        return (x, 0) if isinstance(x, cupy.ndarray) else (None, word(x, dtype))

    def _result(self, operands: list[Any], dtype: Native) -> tuple[X, Host]:
        """A fresh array of the common shape, and how the operands lie for it."""
        present = [x for x in operands if x is not None]
        shape = present[0].shape
        if all(x.shape == shape for x in present):
            alike = all(x.flags.c_contiguous for x in present)
        else:
            shape, alike = np.broadcast_shapes(*(x.shape for x in present)), False
        lie = ALIKE if alike else geometry(shape, *operands)
        return self._place.empty(shape, dtype), lie
