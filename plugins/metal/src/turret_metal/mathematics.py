"""exp and erf to the accuracy that the contract asks for, where MLX's own are rougher: on its CPU device."""

from __future__ import annotations

import math

import mlx.core as mx

from .stream import Stream, X

# r(x) = -log(erfc(x)) / x is smooth: this fraction is within 8e-8 of it, in relation to what erf makes of it.
RATE_ABOVE = (1.12837908, 1.28145773, 0.59532994, 0.11259306)
RATE_BELOW = (1.0, 0.57146699, 0.11416839)
SATURATED = 4.2  # erf is 1 to the last bit of float32
GONE = 30.0  # erfc is 0 in float32, and the fraction's parts are finite


def exp(do: Stream, x: X) -> X:
    """e^x of a float32 array. MLX's own errs by x times the rounding unit and overflows at 88; its expm1 does not."""
    if do.on_gpu:
        return do(mx.exp, x)
    growing = do(mx.add, do(mx.expm1, do(mx.abs, x)), 1.0)
    return do(mx.where, do(mx.less, x, 0.0), do(mx.divide, 1.0, growing), growing)


def erf(do: Stream, x: X) -> X:
    """The error function of a float32 array, within 1.5e-7 and of nearly full relative accuracy near 0.

    erf(x) = 1 - exp(-x r(x)) for x > 0, and odd; expm1 keeps what is small. MLX's own errs by 2e-7, which is everything
    near 0.
    """
    if do.on_gpu:
        return do(mx.erf, x)
    rest = do(mx.expm1, _log_erfc(do, do(mx.minimum, do(mx.abs, x), SATURATED)))
    return do(mx.where, do(mx.less, x, 0.0), rest, do(mx.negative, rest))


def normal_gate(do: Stream, x: X) -> X:
    """(1 + erf(x / sqrt 2)) / 2 of a float32 array, within 1e-7 and, in the left tail, of its own order."""
    if do.on_gpu:
        return do(mx.multiply, do(mx.add, do(mx.erf, do(mx.multiply, x, math.sqrt(0.5))), 1.0), 0.5)
    size = do(mx.minimum, do(mx.multiply, do(mx.abs, x), math.sqrt(0.5)), GONE)
    tail = do(mx.multiply, do(mx.exp, _log_erfc(do, size)), 0.5)
    return do(mx.where, do(mx.less, x, 0.0), tail, do(mx.subtract, 1.0, tail))


def _log_erfc(do: Stream, x: X) -> X:
    """log(erfc(x)) of x >= 0."""
    above, below = (_polynomial(do, x, coefficients) for coefficients in (RATE_ABOVE, RATE_BELOW))
    return do(mx.multiply, do(mx.negative, x), do(mx.divide, above, below))


def _polynomial(do: Stream, x: X, coefficients: tuple[float, ...]) -> X:
    """The sum of coefficients[i] x^i."""
    *rest, last = coefficients
    total: X | float = last
    for coefficient in reversed(rest):
        total = do(mx.add, do(mx.multiply, x, total), coefficient)
    assert not isinstance(total, float)
    return total
