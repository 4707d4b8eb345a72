"""Functions of one float32 that LLVM can run eight at a time."""

# mypy: disable-error-code="no-untyped-def"
from __future__ import annotations

import numpy as np

from .compiler import STRICT, inlined
from .intrinsics import bits_float, float_bits

_F = np.float32
ZERO, HALF, ONE = _F(0), _F(0.5), _F(1)
INFINITY = _F(np.inf)
_LOW, _HIGH = _F(-87.3), _F(88.3)
_LOG2E, _LN2_HIGH, _LN2_LOW = _F(1.44269504), _F(0.693359375), _F(-2.12194440e-4)
# Adding 1.5 * 2^23 leaves the nearest integer in the low bits, without a conversion that NaN would make undefined.
_ROUND = _F(12582912.0)
_ROUND_BITS = 0x4B400000
# (e^r - 1 - r) / r^2 on |r| <= ln 2 / 2: least squares in relative error, 4e-9.
_E2, _E3, _E4, _E5, _E6 = _F(0.49999988), _F(0.16666518), _F(0.041669533), _F(0.008368923), _F(0.0013751381)
# (2^r - 1) / r on |r| <= 1 / 2: minimax in relative error of 2^r, 9e-8.
_P1, _P2, _P3, _P4, _P5 = _F(0.693147), _F(0.24022242), _F(0.055507336), _F(0.009671513), _F(0.0013264726)
_DOWN = _F(-125)
# 0.5 erfcx(a / sqrt 2) in t = (a - 3) / (a + 3) on 0 <= a <= 14, highest power first: relative error 1.5e-7 in float32.
_TAIL = tuple(
    _F(c)
    for c in (
        5.367203993955627e-05,
        0.00011554392403922975,
        -0.0003394851228222251,
        -0.0009837585967034101,
        0.0029045562259852886,
        0.006132070906460285,
        -0.046213291585445404,
        0.12322503328323364,
        -0.20640261471271515,
        0.12151394784450531,
    )
)
_T9, _T8, _T7, _T6, _T5, _T4, _T3, _T2, _T1, _T0 = _TAIL
_FAR = _F(14)
_DENSITY = _F(0.3989422804014327)
_TANH_1, _TANH_3 = _F(2 * 0.7978845608028654), _F(2 * 0.7978845608028654 * 0.044715)


@inlined(fastmath=STRICT, always=True)
def exp(x):
    """e^x within 2 ulp; 0 below -87.3, inf above 88.3."""
    y = _LOW if x < _LOW else x
    y = _HIGH if y > _HIGH else y
    shifted = y * _LOG2E + _ROUND
    n = shifted - _ROUND
    r = (y - n * _LN2_HIGH) - n * _LN2_LOW
    q = (((_E6 * r + _E5) * r + _E4) * r + _E3) * r + _E2
    power = bits_float(np.int32((float_bits(shifted) - _ROUND_BITS + 127) << 23))
    e = ((q * r) * r + r + ONE) * power
    e = ZERO if x < _LOW else e
    return INFINITY if x > _HIGH else e


@inlined(fastmath=STRICT, always=True)
def exp_down(x):
    """e^x for x <= 0 within a relative error of 2e-7 + 6e-8 |x|, in half the time of `exp`; 0 below -86.6."""
    y = x * _LOG2E
    shifted = y + _ROUND
    r = y - (shifted - _ROUND)
    s = r * r
    p = ((_P5 * r + _P4) * s + (_P3 * r + _P2)) * s + (_P1 * r + ONE)
    # p is within a factor 2 of 1, so the power of two goes straight into its exponent
    e = bits_float(np.int32(float_bits(p) + (float_bits(shifted) << 23)))
    return ZERO if y < _DOWN else e


@inlined(fastmath=STRICT, always=True)
def sigmoid(x):
    return ONE / (ONE + exp(-x))


@inlined(fastmath=STRICT, always=True)
def _normal(x):
    """Phi(x) and e^(-x^2 / 2), both with small relative error in the tails."""
    a = abs(x)
    a = _FAR if a > _FAR else a
    t = (a - _F(3)) / (a + _F(3))
    p = ((((_T9 * t + _T8) * t + _T7) * t + _T6) * t + _T5) * t + _T4
    p = (((p * t + _T3) * t + _T2) * t + _T1) * t + _T0
    bell = exp(-HALF * a * a)
    tail = bell * p
    return (tail if x < ZERO else ONE - tail), bell


@inlined(fastmath=STRICT, always=True)
def gelu_erf(x):
    phi, _ = _normal(x)
    return x * phi


@inlined(fastmath=STRICT, always=True)
def gelu_erf_slope(x):
    phi, bell = _normal(x)
    near = -_FAR if x < -_FAR else x
    near = _FAR if near > _FAR else near
    return phi + near * (_DENSITY * bell)


@inlined(fastmath=STRICT, always=True)
def gelu_tanh(x):
    # 0.5 (1 + tanh u) is the sigmoid of 2 u
    return x * sigmoid(x * (_TANH_1 + _TANH_3 * x * x))


@inlined(fastmath=STRICT, always=True)
def gelu_tanh_slope(x):
    y = -_FAR if x < -_FAR else x
    y = _FAR if y > _FAR else y
    s = sigmoid(y * (_TANH_1 + _TANH_3 * y * y))
    return s + y * s * (ONE - s) * (_TANH_1 + _F(3) * _TANH_3 * y * y)


@inlined(fastmath=STRICT, always=True)
def silu(x):
    return x * sigmoid(x)


@inlined(fastmath=STRICT, always=True)
def silu_slope(x):
    s = sigmoid(x)
    y = -_HIGH if x < -_HIGH else x
    y = _HIGH if y > _HIGH else y
    return s * (ONE + y * (ONE - s))
