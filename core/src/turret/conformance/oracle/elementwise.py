"""Truth of the element-wise operations: NumPy's broadcasting, IEEE 754-2019; one operand may be a Python scalar."""

from __future__ import annotations

import numpy as np

from .arrays import Array, quiet
from .special import erf as erf


@quiet
def add(a: Array | float, b: Array | float, /) -> Array:
    """a + b. Source: IEEE 754-2019, section 5.4.1."""
    return a + b


@quiet
def subtract(a: Array | float, b: Array | float, /) -> Array:
    """a - b. Source: IEEE 754-2019, section 5.4.1."""
    return a - b


@quiet
def multiply(a: Array | float, b: Array | float, /) -> Array:
    """a * b. Source: IEEE 754-2019, section 5.4.1."""
    return a * b


@quiet
def divide(a: Array | float, b: Array | float, /) -> Array:
    """a / b; an infinity over 0. Source: IEEE 754-2019, sections 5.4.1 and 7.3."""
    return a / b


@quiet
def maximum(a: Array | float, b: Array | float, /) -> Array:
    """The greater, NaN where either is. Source: IEEE 754-2019, section 9.6."""
    return np.maximum(a, b)


@quiet
def minimum(a: Array | float, b: Array | float, /) -> Array:
    """The lesser, NaN where either is. Source: IEEE 754-2019, section 9.6."""
    return np.minimum(a, b)


def negative(x: Array, /) -> Array:
    """-x, of zeros too. Source: IEEE 754-2019, section 5.5.1."""
    return -x


@quiet
def exp(x: Array, /) -> Array:
    """e^x. Source: IEEE 754-2019, section 9.2."""
    return np.exp(x)


@quiet
def log(x: Array, /) -> Array:
    """The natural logarithm: -inf at 0, NaN below. Source: IEEE 754-2019, section 9.2."""
    return np.log(x)


@quiet
def sqrt(x: Array, /) -> Array:
    """The square root, NaN below 0. Source: IEEE 754-2019, section 5.4.1."""
    return np.sqrt(x)


@quiet
def rsqrt(x: Array, /) -> Array:
    """1 / sqrt(x): inf at 0, NaN below. Source: IEEE 754-2019, section 9.2 (rSqrt)."""
    return 1.0 / np.sqrt(x)


@quiet
def tanh(x: Array, /) -> Array:
    """The hyperbolic tangent. Source: IEEE 754-2019, section 9.2."""
    return np.tanh(x)


def isfinite(x: Array, /) -> Array:
    """bool: neither infinite nor NaN. Source: IEEE 754-2019, section 5.7.2."""
    return np.isfinite(x)


def equal(a: Array | float, b: Array | float, /) -> Array:
    """bool: a == b; NaN equals nothing. Source: IEEE 754-2019, section 5.11."""
    return a == b


def less(a: Array | float, b: Array | float, /) -> Array:
    """bool: a < b; False where either is NaN. Source: IEEE 754-2019, section 5.11."""
    return a < b


def less_equal(a: Array | float, b: Array | float, /) -> Array:
    """bool: a <= b; False where either is NaN. Source: IEEE 754-2019, section 5.11."""
    return a <= b


def logical_and(a: Array, b: Array, /) -> Array:
    """bool: both hold."""
    return a & b


def where(condition: Array, a: Array | float, b: Array | float, /) -> Array:
    """a where the bool `condition` holds, else b."""
    return np.where(condition, a, b)
