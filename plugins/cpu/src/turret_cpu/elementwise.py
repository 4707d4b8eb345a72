"""The element-wise slot: NumPy's functions without its warnings, large float32 sums on all cores."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from .arrays import X, kernel_ready
from .kernels import pointwise
from .memory import empty
from .threads import POOL

LARGE = 16_384  # elements from which on the kernel beats NumPy's call

Operand = X | float


def _quiet(function: Callable[..., Any], *operands: object) -> X:
    with np.errstate(all="ignore"):
        return np.asarray(function(*operands))


def _float32(function: Callable[..., Any], a: Operand, b: Operand) -> X:
    """A function whose float32 result, where it is large and has the shape of an operand, lies in used memory."""
    for x, other in ((a, b), (b, a)):
        if isinstance(x, np.ndarray) and x.size >= LARGE and x.dtype == np.float32:
            if isinstance(other, np.ndarray) and other.ndim and other.shape != x.shape:
                continue
            with np.errstate(all="ignore"):
                return np.asarray(function(a, b, out=empty(x.shape)))
    return _quiet(function, a, b)


def _alike(a: X, b: X) -> bool:
    return a.shape == b.shape and kernel_ready(a) and kernel_ready(b) and a.flags.carray and b.flags.carray


class CpuElementwise:
    """NaN and infinities propagate silently; a result of rank 0 is an array."""

    def add(self, a: Operand, b: Operand, /) -> X:
        if isinstance(a, np.ndarray) and isinstance(b, np.ndarray) and a.size >= LARGE and _alike(a, b):
            out = empty(a.shape)
            POOL.run(pointwise.add, 0.15 * a.size, a, b, out, a.size)
            return out
        return _quiet(np.add, a, b)

    def subtract(self, a: Operand, b: Operand, /) -> X:
        return _float32(np.subtract, a, b)

    def multiply(self, a: Operand, b: Operand, /) -> X:
        return _float32(np.multiply, a, b)

    def divide(self, a: Operand, b: Operand, /) -> X:
        return _float32(np.divide, a, b)

    def maximum(self, a: Operand, b: Operand, /) -> X:
        return _float32(np.maximum, a, b)

    def minimum(self, a: Operand, b: Operand, /) -> X:
        return _float32(np.minimum, a, b)

    def negative(self, x: X, /) -> X:
        return _quiet(np.negative, x)

    def exp(self, x: X, /) -> X:
        return _quiet(np.exp, x)

    def log(self, x: X, /) -> X:
        return _quiet(np.log, x)

    def sqrt(self, x: X, /) -> X:
        return _quiet(np.sqrt, x)

    def rsqrt(self, x: X, /) -> X:
        if x.dtype == np.float16:  # two roundings to a half are one too many
            return self.rsqrt(x.astype(np.float32)).astype(np.float16)
        return _quiet(lambda y: np.divide(1.0, np.sqrt(y)), x)

    def tanh(self, x: X, /) -> X:
        return _quiet(np.tanh, x)

    def erf(self, x: X, /) -> X:
        wide = np.array(x, np.float64, order="C")
        if wide.size:
            POOL.run(pointwise.erf, 15.0 * wide.size, wide, wide.size)
        return wide.astype(x.dtype)

    def isfinite(self, x: X, /) -> X:
        return np.asarray(np.isfinite(x))

    def equal(self, a: Operand, b: Operand, /) -> X:
        return _quiet(np.equal, a, b)

    def less(self, a: Operand, b: Operand, /) -> X:
        return _quiet(np.less, a, b)

    def less_equal(self, a: Operand, b: Operand, /) -> X:
        return _quiet(np.less_equal, a, b)

    def logical_and(self, a: X, b: X, /) -> X:
        return np.asarray(np.logical_and(a, b))

    def where(self, condition: X, a: Operand, b: Operand, /) -> X:
        return np.where(condition, a, b)
