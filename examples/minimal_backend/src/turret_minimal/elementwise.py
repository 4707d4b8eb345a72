"""The elementwise slot: NumPy's functions, silent, and with arrays for results of rank 0."""

from __future__ import annotations

import math

import numpy as np

from .storage import X, quiet

Operand = X | float
"""An array, or a Python scalar that takes the dtype of the other operand: NumPy does so for Python's own types only."""


class MinimalElementwise:
    """Wherever a ufunc would answer with a NumPy scalar, `asarray` makes it the array that the contract wants."""

    @quiet
    def add(self, a: Operand, b: Operand, /) -> X:
        return np.asarray(np.add(a, b))

    @quiet
    def subtract(self, a: Operand, b: Operand, /) -> X:
        return np.asarray(np.subtract(a, b))

    @quiet
    def multiply(self, a: Operand, b: Operand, /) -> X:
        return np.asarray(np.multiply(a, b))

    @quiet
    def divide(self, a: Operand, b: Operand, /) -> X:
        return np.asarray(np.divide(a, b))

    @quiet
    def maximum(self, a: Operand, b: Operand, /) -> X:
        return np.asarray(np.maximum(a, b))  # NaN wins; NumPy's `fmax` would hide it

    @quiet
    def minimum(self, a: Operand, b: Operand, /) -> X:
        return np.asarray(np.minimum(a, b))

    @quiet
    def negative(self, x: X, /) -> X:
        return np.asarray(np.negative(x))

    @quiet
    def exp(self, x: X, /) -> X:
        return np.asarray(np.exp(x))

    @quiet
    def log(self, x: X, /) -> X:
        return np.asarray(np.log(x))

    @quiet
    def sqrt(self, x: X, /) -> X:
        return np.asarray(np.sqrt(x))

    @quiet
    def rsqrt(self, x: X, /) -> X:
        # Two operations are two roundings, which a half is too coarse for.
        wide = np.float32 if x.dtype == np.float16 else x.dtype
        return np.asarray(np.divide(1.0, np.sqrt(x, dtype=wide))).astype(x.dtype)

    @quiet
    def tanh(self, x: X, /) -> X:
        return np.asarray(np.tanh(x))

    @quiet
    def erf(self, x: X, /) -> X:
        # The C library's, an element at a time. The result is float64 and has to come back to x's dtype.
        return np.asarray(np.vectorize(math.erf, otypes=[np.float64])(x)).astype(x.dtype)

    def isfinite(self, x: X, /) -> X:
        return np.asarray(np.isfinite(x))

    @quiet
    def equal(self, a: Operand, b: Operand, /) -> X:
        return np.asarray(np.equal(a, b))

    @quiet
    def less(self, a: Operand, b: Operand, /) -> X:
        return np.asarray(np.less(a, b))

    @quiet
    def less_equal(self, a: Operand, b: Operand, /) -> X:
        return np.asarray(np.less_equal(a, b))

    def logical_and(self, a: X, b: X, /) -> X:
        return np.asarray(np.logical_and(a, b))

    def where(self, condition: X, a: Operand, b: Operand, /) -> X:
        # A choice, not `condition * a + (1 - condition) * b`: what is not chosen may be NaN.
        return np.where(condition, a, b)
