"""Rotary positions and rows that are added where an index says."""

# mypy: disable-error-code="no-untyped-def"
from __future__ import annotations

import numpy as np

from .compiler import kernel
from .intrinsics import floats, integers, word_float, words_of
from .product import share


@kernel
def rope(words, part, parts):
    """Words: x, cos, sin, y, B, T, H, d, whether cos has a batch axis, sign of the angle, whether interleaved."""
    w = words_of(words)
    count, heads, d, half, sign = w[5], w[6], w[7], w[7] // 2, np.float32(word_float(w[9]))
    r0, r1 = share(part, parts, w[4] * count)
    for r in range(r0, r1):
        angle = 4 * (r if w[8] else r % count) * half
        cos, sin = floats(w[1] + angle, half), floats(w[2] + angle, half)
        for h in range(heads):
            at = 4 * (r * heads + h) * d
            x, y = floats(w[0] + at, d), floats(w[3] + at, d)
            if w[10]:
                for i in range(half):
                    s = sign * sin[i]
                    y[2 * i] = x[2 * i] * cos[i] - x[2 * i + 1] * s
                    y[2 * i + 1] = x[2 * i + 1] * cos[i] + x[2 * i] * s
            else:
                high, to = floats(w[0] + at + 4 * half, half), floats(w[3] + at + 4 * half, half)
                for i in range(half):
                    s = sign * sin[i]
                    y[i] = x[i] * cos[i] - high[i] * s
                    to[i] = high[i] * cos[i] + x[i] * s


@kernel
def add_rows(words, part, parts):
    """out[ids[m]] += rows[m] in order of m, a share of the columns. Words: out, ids, rows, M, columns."""
    w = words_of(words)
    d0, d1 = share(part, parts, w[4])
    ids = integers(w[1], w[3])
    for m in range(w[3]):
        out = floats(w[0] + 4 * (ids[m] * w[4] + d0), d1 - d0)
        row = floats(w[2] + 4 * (m * w[4] + d0), d1 - d0)
        for d in range(d1 - d0):
            out[d] += row[d]
