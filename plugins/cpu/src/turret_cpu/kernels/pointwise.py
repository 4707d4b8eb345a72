"""Kernels that read and write each element once."""

# mypy: disable-error-code="no-untyped-def"
from __future__ import annotations

import math

from . import mathematics as m
from .compiler import kernel
from .intrinsics import doubles, floats, words_of
from .product import share


@kernel
def gelu(words, part, parts):
    """Words: x, y, size, whether the tanh form."""
    w = words_of(words)
    i0, i1 = share(part, parts, w[2])
    x, y = floats(w[0] + 4 * i0, i1 - i0), floats(w[1] + 4 * i0, i1 - i0)
    if w[3]:
        for i in range(i1 - i0):
            y[i] = m.gelu_tanh(x[i])
    else:
        for i in range(i1 - i0):
            y[i] = m.gelu_erf(x[i])


@kernel
def gelu_vjp(words, part, parts):
    """Words: dy, x, dx, size, whether the tanh form."""
    w = words_of(words)
    i0, i1 = share(part, parts, w[3])
    n, at = i1 - i0, 4 * i0
    dy, x, dx = floats(w[0] + at, n), floats(w[1] + at, n), floats(w[2] + at, n)
    if w[4]:
        for i in range(n):
            dx[i] = dy[i] * m.gelu_tanh_slope(x[i])
    else:
        for i in range(n):
            dx[i] = dy[i] * m.gelu_erf_slope(x[i])


@kernel
def silu(words, part, parts):
    """Words: x, y, size."""
    w = words_of(words)
    i0, i1 = share(part, parts, w[2])
    x, y = floats(w[0] + 4 * i0, i1 - i0), floats(w[1] + 4 * i0, i1 - i0)
    for i in range(i1 - i0):
        y[i] = m.silu(x[i])


@kernel
def silu_vjp(words, part, parts):
    """Words: dy, x, dx, size."""
    w = words_of(words)
    i0, i1 = share(part, parts, w[3])
    n, at = i1 - i0, 4 * i0
    dy, x, dx = floats(w[0] + at, n), floats(w[1] + at, n), floats(w[2] + at, n)
    for i in range(n):
        dx[i] = dy[i] * m.silu_slope(x[i])


@kernel
def gated_silu(words, part, parts):
    """Words: gate, up, y, size."""
    w = words_of(words)
    i0, i1 = share(part, parts, w[3])
    n, at = i1 - i0, 4 * i0
    gate, up, y = floats(w[0] + at, n), floats(w[1] + at, n), floats(w[2] + at, n)
    for i in range(n):
        y[i] = m.silu(gate[i]) * up[i]


@kernel
def gated_silu_vjp(words, part, parts):
    """Words: dy, gate, up, d gate, d up, size."""
    w = words_of(words)
    i0, i1 = share(part, parts, w[5])
    n, at = i1 - i0, 4 * i0
    dy, gate, up = floats(w[0] + at, n), floats(w[1] + at, n), floats(w[2] + at, n)
    dgate, dup = floats(w[3] + at, n), floats(w[4] + at, n)
    for i in range(n):
        dgate[i] = dy[i] * up[i] * m.silu_slope(gate[i])
        dup[i] = dy[i] * m.silu(gate[i])


@kernel
def add(words, part, parts):
    """Words: a, b, out, size."""
    w = words_of(words)
    i0, i1 = share(part, parts, w[3])
    n, at = i1 - i0, 4 * i0
    a, b, out = floats(w[0] + at, n), floats(w[1] + at, n), floats(w[2] + at, n)
    for i in range(n):
        out[i] = a[i] + b[i]


@kernel
def erf(words, part, parts):
    """In place, float64. Words: x, size."""
    w = words_of(words)
    i0, i1 = share(part, parts, w[1])
    x = doubles(w[0] + 8 * i0, i1 - i0)
    for i in range(i1 - i0):
        x[i] = math.erf(x[i])
