"""Adam over a table of tensors, in chunks of 4,096 elements whose bits do not depend on how tensors are cut into pages.

A table row: parameter, gradient, moments (addresses), size, first chunk, decay, new parameter and moments (addresses,
which may be the old ones).
"""

# mypy: disable-error-code="no-untyped-def"
from __future__ import annotations

import numpy as np

from .compiler import STRICT, inlined, kernel
from .intrinsics import doubles, float_bits, floats, integers, longs, word_float, words_of
from .product import share

CHUNK = 4096
COLUMNS = 10
_EXPONENT = 0x7F800000


@kernel
def squares(words, part, parts):
    """The sum of squares of every chunk of gradients, in float64. Words: table, rows, chunks, sums."""
    w = words_of(words)
    c0, c1 = share(part, parts, w[2])
    sums = doubles(w[3], w[2])
    for i in range(w[1]):
        row = longs(w[0] + 8 * COLUMNS * i, COLUMNS)
        chunks = (row[4] + CHUNK - 1) // CHUNK
        for c in range(max(0, c0 - row[5]), min(chunks, c1 - row[5])):
            n = min(CHUNK, row[4] - c * CHUNK)
            g = floats(row[1] + 4 * c * CHUNK, n)
            total = 0.0
            for j in range(n):
                total += np.float64(g[j]) * np.float64(g[j])
            sums[row[5] + c] = total


@inlined(fastmath=STRICT, always=True)
def adapt(p, g, m, v, c):
    """New parameter and moments. c: clip, b1, 1 - b1, b2, 1 - b2, 1 / correction1, 1 / correction2, eps, lr, decay."""
    g = g * c[0]
    m = c[1] * m + c[2] * g
    v = c[3] * v + c[4] * (g * g)
    step = (m * c[5]) / (np.sqrt(v * c[6]) + c[7])
    return p - c[8] * (step + c[9] * p), m, v


@inlined
def infinite(x):
    return (float_bits(x) & _EXPONENT) == _EXPONENT


@kernel(fastmath=STRICT)
def update(words, part, parts):
    """A share of the chunks, looked at or written. Words: table, rows, chunks, settings, bad, whether to write.

    settings: c of `adapt` without the decay. bad: (parts,) int32 preset to 0, not 0 where a result would not be finite.
    """
    w = words_of(words)
    c0, c1 = share(part, parts, w[2])
    s = floats(w[3], 9)
    bad = integers(w[4] + 4 * part, 1)
    for i in range(w[1]):
        row = longs(w[0] + 8 * COLUMNS * i, COLUMNS)
        c = (s[0], s[1], s[2], s[3], s[4], s[5], s[6], s[7], s[8], np.float32(word_float(row[6])))
        chunks = (row[4] + CHUNK - 1) // CHUNK
        for chunk in range(max(0, c0 - row[5]), min(chunks, c1 - row[5])):
            n, at = min(CHUNK, row[4] - chunk * CHUNK), 4 * chunk * CHUNK
            p, g, m, v = floats(row[0] + at, n), floats(row[1] + at, n), floats(row[2] + at, n), floats(row[3] + at, n)
            seen = np.int32(0)
            if w[5]:
                p2, m2, v2 = floats(row[7] + at, n), floats(row[8] + at, n), floats(row[9] + at, n)
                for j in range(n):
                    a, b, d = adapt(p[j], g[j], m[j], v[j], c)
                    p2[j], m2[j], v2[j] = a, b, d
                    seen |= np.int32(infinite(a) | infinite(b) | infinite(d))
            else:
                for j in range(n):
                    a, b, d = adapt(p[j], g[j], m[j], v[j], c)
                    seen |= np.int32(infinite(a) | infinite(b) | infinite(d))
            bad[0] |= seen
