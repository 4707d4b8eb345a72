"""Matrix products: packed panels of the right operand, register tiles, one order of summation.

A result's bits depend on its row, its column and the depth only: not on how many rows there are, nor on the threads.
Matrices are flat arrays with an offset and strides, all counted in elements.
Source of the blocking: Goto and van de Geijn 2008, section 4.
"""

# mypy: disable-error-code="no-untyped-def"
from __future__ import annotations

import numpy as np

from .compiler import inlined, kernel
from .intrinsics import PANEL, floats, tile1, tile2, tile6, words_of

DEPTH = 256  # of a packed block: one panel of it stays in the first-level cache
ROWS = 96  # of the left operand at a time: they stay in the second-level cache
STRIP = 6  # rows of a tile
LEFT = DEPTH * (ROWS + STRIP) + ROWS * PANEL  # scratch beside the packed panels


@inlined
def share(part, parts, size):
    """The bounds of one of `parts` nearly equal shares of 0..size."""
    return size * part // parts, size * (part + 1) // parts


@inlined
def panels_of(columns):
    return (columns + PANEL - 1) // PANEL


@inlined
def pack(source, offset, ld, rows, columns, packed, width, stride):
    """Rows of unit stride into panels of `width` columns: packed[p * stride + i * width + j]; missing columns are 0."""
    for p in range((columns + width - 1) // width):
        here = min(width, columns - p * width)
        for i in range(rows):
            to, at = p * stride + i * width, offset + i * ld + p * width
            if here == PANEL:
                for j in range(PANEL):
                    packed[to + j] = source[at + j]
            elif here == STRIP:
                for j in range(STRIP):
                    packed[to + j] = source[at + j]
            else:
                for j in range(here):
                    packed[to + j] = source[at + j]
                for j in range(here, width):
                    packed[to + j] = 0


@inlined
def pack_turned(source, offset, ld, rows, columns, packed, stride):
    """The same for panels of PANEL columns where the source holds the columns as rows: source[offset + j * ld + i]."""
    for p in range(panels_of(columns)):
        here = min(PANEL, columns - p * PANEL)
        for start in range(0, rows, PANEL):
            stop = min(rows, start + PANEL)
            for j in range(here):
                at = offset + (p * PANEL + j) * ld
                for i in range(start, stop):
                    packed[p * stride + i * PANEL + j] = source[at + i]
            for j in range(here, PANEL):
                for i in range(start, stop):
                    packed[p * stride + i * PANEL + j] = 0


@inlined
def strips(c, ldc, init, ldi, a, rs, cs, skip, b, depth, rows):
    """Every row of one panel. Addresses in bytes; `skip` elements of a lead from one strip of rows to the next."""
    i = 0
    while i + STRIP <= rows:
        tile6(c + 4 * i * ldc, ldc, init + 4 * i * ldi, ldi, a + 4 * (i // STRIP) * skip, rs, cs, b, depth)
        i += STRIP
    a += 4 * (i // STRIP) * skip
    while i + 2 <= rows:
        tile2(c + 4 * i * ldc, ldc, init + 4 * i * ldi, ldi, a, rs, cs, b, depth)
        a += 8 * rs
        i += 2
    if i < rows:
        tile1(c + 4 * i * ldc, ldc, init + 4 * i * ldi, ldi, a, rs, cs, b, depth)


@inlined
def block(c, co, ldc, init, io, ldi, a, ao, rs, cs, skip, packed, po, stride, depth, rows, columns, scratch):
    """c[co:] = init[io:] + a[ao:] @ packed[po:], rows x columns. ldi = 0: one row of init for all; init may be c.

    A panel with fewer columns than a tile goes through scratch (ROWS * PANEL).
    """
    left, cell = a.ctypes.data + 4 * ao, scratch.ctypes.data
    for p in range(panels_of(columns)):
        right, at = packed.ctypes.data + 4 * (po + p * stride), p * PANEL
        to, start = c.ctypes.data + 4 * (co + at), init.ctypes.data + 4 * (io + at)
        here = columns - at
        if here < PANEL:
            for i in range(rows):
                for j in range(here):
                    scratch[i * PANEL + j] = init[io + at + i * ldi + j]
            to, start = cell, cell
        ld = ldc if here >= PANEL else PANEL
        strips(to, ld, start, ldi if here >= PANEL else PANEL, left, rs, cs, skip, right, depth, rows)
        if here < PANEL:
            for i in range(rows):
                for j in range(here):
                    c[co + at + i * ldc + j] = scratch[i * PANEL + j]


@inlined
def grid(part, parts, rows, columns, by_rows):
    """This share's rows and columns (r0, r1, c0, c1): as few operands as can be are packed by two owners."""
    across = 1 if by_rows and rows >= parts * STRIP else parts
    while across > 1 and (parts % across != 0 or panels_of(columns) < 2 * across):
        across -= 1
    down = parts // across
    r0, r1 = share(part // across, down, rows)
    p0, p1 = share(part % across, across, panels_of(columns))
    return r0, r1, p0 * PANEL, min(columns, p1 * PANEL)


@inlined
def one_product(a, ao, ta, lda, b, bo, tb, ldb, init, c, co, ldc, depth, r0, r1, c0, c1, packed, left, scratch):
    """Rows r0..r1 and columns c0..c1 of c = init + op(a) op(b)."""
    for k0 in range(0, depth, DEPTH):
        deep = min(DEPTH, depth - k0)
        stride = deep * PANEL
        if tb:
            pack_turned(b, bo + c0 * ldb + k0, ldb, deep, c1 - c0, packed, stride)
        else:
            pack(b, bo + k0 * ldb + c0, ldb, deep, c1 - c0, packed, PANEL, stride)
        for i0 in range(r0, r1, ROWS):
            high = min(ROWS, r1 - i0)
            to = co + i0 * ldc + c0
            start, io, ldi = (init, c0, 0) if k0 == 0 else (c, to, ldc)
            source, at, rs, cs, skip = a, ao + i0 * lda + k0, lda, 1, STRIP * lda
            if ta:
                pack(a, ao + k0 * lda + i0, lda, deep, high, left, STRIP, deep * STRIP)
                source, at, rs, cs, skip = left, 0, 1, STRIP, deep * STRIP
            block(c, to, ldc, start, io, ldi, source, at, rs, cs, skip, packed, 0, stride, deep, high, c1 - c0, scratch)


@kernel
def product(words, part, parts):
    """c (Z, M, N) = init (N) + op(a) op(b). Words: a, ta, b, tb, init, c, Z, M, N, K, scratch, its size a share."""
    w = words_of(words)
    ta, tb, batch, rows, columns, depth = w[1] != 0, w[3] != 0, w[6], w[7], w[8], w[9]
    a, b, c = floats(w[0], batch * rows * depth), floats(w[2], batch * depth * columns), floats(w[5], batch * rows * columns)
    init = floats(w[4], columns)
    if batch >= parts:
        z0, z1 = share(part, parts, batch)
        r0, r1, c0, c1 = 0, rows, 0, columns
    else:
        z0, z1 = 0, batch
        r0, r1, c0, c1 = grid(part, parts, rows, columns, ta and rows > columns)
    if r0 >= r1 or c0 >= c1:
        return
    deep, base = min(depth, DEPTH), w[10] + 4 * part * w[11]
    packed, left, scratch = floats(base + 4 * LEFT, 1 << 40), floats(base + 4 * ROWS * PANEL, LEFT), floats(base, ROWS * PANEL)
    lda, ldb = rows if ta else depth, depth if tb else columns
    for z in range(z0, z1):
        ao, bo, co = z * rows * depth, z * depth * columns, z * rows * columns
        one_product(a, ao, ta, lda, b, bo, tb, ldb, init, c, co, columns, depth, r0, r1, c0, c1, packed, left, scratch)


@kernel
def few_rows(words, part, parts):
    """y = x weight^T + bias for so few rows that packing would cost more. Words: x, weight, bias, y, M, O, I."""
    w = words_of(words)
    count, outs, depth = w[4], w[5], w[6]
    x, weight, bias, y = floats(w[0], count, depth), floats(w[1], outs, depth), floats(w[2], outs), floats(w[3], count, outs)
    o0, o1 = share(part, parts, outs)
    for o in range(o0, o1):
        for m in range(count):
            total = np.float32(0)
            for k in range(depth):
                total += weight[o, k] * x[m, k]
            y[m, o] = total + bias[o]


@kernel
def column_sums(words, part, parts):
    """out (D) = sums over the rows of x (M, D), of 64 rows and then of those. Words: x, out, some (D), M, D."""
    w = words_of(words)
    rows, columns = w[3], w[4]
    x, out, some = floats(w[0], rows, columns), floats(w[1], columns), floats(w[2], columns)
    d0, d1 = share(part, parts, columns)
    for d in range(d0, d1):
        out[d] = 0
    for start in range(0, rows, 64):
        for d in range(d0, d1):
            some[d] = 0
        for i in range(start, min(rows, start + 64)):
            for d in range(d0, d1):
                some[d] += x[i, d]
        for d in range(d0, d1):
            out[d] += some[d]
