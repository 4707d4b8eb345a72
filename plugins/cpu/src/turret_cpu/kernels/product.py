"""Matrix products: packed panels of the right operand, register tiles, one order of summation.

A result's bits depend on its row, its column and the depth only: not on how many rows there are, nor on the threads.
Matrices are addresses in bytes with strides in elements.
Source of the blocking: Goto and van de Geijn 2008, section 4.
"""

# mypy: disable-error-code="no-untyped-def"
from __future__ import annotations

import numpy as np

from .compiler import inlined, kernel
from .intrinsics import PANEL, TURN, floats, move6, move_panel, tile1, tile2, tile6, turn, words_of

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
def pack(source, ld, rows, columns, packed, stride):
    """Rows of unit stride into panels: packed[p * stride + i * PANEL + j]; missing columns are 0."""
    for p in range(panels_of(columns)):
        here = min(PANEL, columns - p * PANEL)
        for i in range(rows):
            line, to = source + 4 * (i * ld + p * PANEL), packed + 4 * (p * stride + i * PANEL)
            if here == PANEL:
                move_panel(to, line)
            else:
                x, y = floats(line, here), floats(to, PANEL)
                for j in range(here):
                    y[j] = x[j]
                for j in range(here, PANEL):
                    y[j] = 0


@inlined
def pack_strips(source, ld, rows, columns, packed):
    """Rows of unit stride into strips: packed[(s * rows + i) * STRIP + j]; missing columns stay undefined."""
    whole = columns // STRIP
    for start in range(0, rows, 8):
        stop = min(rows, start + 8)
        for s in range(whole):
            for i in range(start, stop):
                move6(packed + 4 * (s * rows + i) * STRIP, source + 4 * (i * ld + s * STRIP))
    for i in range(rows):
        x = floats(source + 4 * (i * ld + whole * STRIP), STRIP)
        to = floats(packed + 4 * (whole * rows + i) * STRIP, STRIP)
        for j in range(columns - whole * STRIP):
            to[j] = x[j]


@inlined
def turn_cells(source, ld, rows, columns, to):
    """to[i * PANEL + j] = source[j * ld + i]."""
    for j in range(columns):
        line, cells = floats(source + 4 * j * ld, rows), floats(to + 4 * j, rows * PANEL)
        for i in range(rows):
            cells[i * PANEL] = line[i]


@inlined
def pack_turned(source, ld, rows, columns, packed, stride):
    """What `pack` makes of rows, where the source holds columns as rows: source[j * ld + i]."""
    high = rows // TURN * TURN
    for p in range(panels_of(columns)):
        lines, to, here = source + 4 * p * PANEL * ld, packed + 4 * p * stride, min(PANEL, columns - p * PANEL)
        wide = here // TURN * TURN
        for i in range(0, high, TURN):
            for j in range(0, wide, TURN):
                turn(lines + 4 * (j * ld + i), ld, to + 4 * (i * PANEL + j), PANEL)
        turn_cells(lines + 4 * high, ld, rows - high, wide, to + 4 * high * PANEL)
        turn_cells(lines + 4 * wide * ld, ld, rows, here - wide, to + 4 * wide)
        for i in range(rows if here < PANEL else 0):
            rest = floats(to + 4 * (i * PANEL + here), PANEL - here)
            for j in range(PANEL - here):
                rest[j] = 0


@inlined
def strips(c, ldc, init, ldi, a, rs, cs, skip, b, depth, rows):
    """Every row of one panel; `skip` elements of a lead from one strip of rows to the next."""
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
def copy_cells(source, lds, to, ldt, rows, columns):
    for i in range(rows):
        a, b = floats(source + 4 * i * lds, columns), floats(to + 4 * i * ldt, columns)
        for j in range(columns):
            b[j] = a[j]


@inlined
def block(c, ldc, init, ldi, a, rs, cs, skip, packed, stride, depth, rows, columns, scratch):
    """c = init + a @ packed, rows x columns. ldi = 0: one row of init for all; init may be c.

    A panel with fewer columns than a tile goes through scratch (ROWS * PANEL).
    """
    for p in range(panels_of(columns)):
        at = 4 * p * PANEL
        here = columns - p * PANEL
        to, start, ldt, lds = c + at, init + at, ldc, ldi
        if here < PANEL:
            copy_cells(start, ldi, scratch, PANEL, rows, here)
            to, start, ldt, lds = scratch, scratch, PANEL, PANEL
        strips(to, ldt, start, lds, a, rs, cs, skip, packed + 4 * p * stride, depth, rows)
        if here < PANEL:
            copy_cells(scratch, PANEL, c + at, ldc, rows, here)


@inlined
def grid(part, parts, rows, columns, left_cost, right_cost):
    """This share's rows and columns (r0, r1, c0, c1), cut so that packing an operand for several shares costs least."""
    best, across = 1 << 60, 1
    for n in range(1, parts + 1):
        fits = panels_of(columns) >= n and rows * n >= parts * STRIP
        cost = rows * left_cost * n + columns * right_cost * (parts // n)
        if parts % n == 0 and (fits or n == 1) and cost < best:
            best, across = cost, n
    r0, r1 = share(part // across, parts // across, rows)
    p0, p1 = share(part % across, across, panels_of(columns))
    return r0, r1, p0 * PANEL, min(columns, p1 * PANEL)


@inlined
def one_product(a, ta, lda, b, tb, ldb, init, c, ldc, depth, r0, r1, c0, c1, scratch):
    """Rows r0..r1 and columns c0..c1 of c = init + op(a) op(b). Scratch: cells, packed left, packed right."""
    left, packed = scratch + 4 * ROWS * PANEL, scratch + 4 * LEFT
    for k0 in range(0, depth, DEPTH):
        deep = min(DEPTH, depth - k0)
        stride = deep * PANEL
        if tb:
            pack_turned(b + 4 * (c0 * ldb + k0), ldb, deep, c1 - c0, packed, stride)
        else:
            pack(b + 4 * (k0 * ldb + c0), ldb, deep, c1 - c0, packed, stride)
        for i0 in range(r0, r1, ROWS):
            high = min(ROWS, r1 - i0)
            to = c + 4 * (i0 * ldc + c0)
            start, ldi = (init + 4 * c0, 0) if k0 == 0 else (to, ldc)
            source, rs, cs, skip = a + 4 * (i0 * lda + k0), lda, 1, STRIP * lda
            if ta:
                pack_strips(a + 4 * (k0 * lda + i0), lda, deep, high, left)
                source, rs, cs, skip = left, 1, STRIP, deep * STRIP
            block(to, ldc, start, ldi, source, rs, cs, skip, packed, stride, deep, high, c1 - c0, scratch)


@kernel
def product(words, part, parts):
    """c (Z, M, N) = init (N) + op(a) op(b). Words: a, ta, b, tb, init, c, Z, M, N, K, scratch, its size a share."""
    w = words_of(words)
    ta, tb, batch, rows, columns, depth = w[1] != 0, w[3] != 0, w[6], w[7], w[8], w[9]
    if batch >= parts:
        z0, z1 = share(part, parts, batch)
        r0, r1, c0, c1 = 0, rows, 0, columns
    else:
        z0, z1 = 0, batch
        r0, r1, c0, c1 = grid(part, parts, rows, columns, 2 if ta else 0, 2 if tb else 1)
    scratch, lda, ldb = w[10] + 4 * part * w[11], rows if ta else depth, depth if tb else columns
    for z in range(z0, z1):
        if r0 < r1 and c0 < c1:
            a, b, c = w[0] + 4 * z * rows * depth, w[2] + 4 * z * depth * columns, w[5] + 4 * z * rows * columns
            one_product(a, ta, lda, b, tb, ldb, w[4], c, columns, depth, r0, r1, c0, c1, scratch)


@kernel
def few_rows(words, part, parts):
    """y = x weight^T + bias for so few rows that packing would cost more. Words: x, weight, bias, y, M, O, I."""
    w = words_of(words)
    count, outs, depth = w[4], w[5], w[6]
    o0, o1 = share(part, parts, outs)
    for o in range(o0, o1):
        line, bias = floats(w[1] + 4 * o * depth, depth), floats(w[2] + 4 * o, 1)
        for m in range(count):
            x, y = floats(w[0] + 4 * m * depth, depth), floats(w[3] + 4 * (m * outs + o), 1)
            total = np.float32(0)
            for k in range(depth):
                total += line[k] * x[k]
            y[0] = total + bias[0]


@kernel
def column_sums(words, part, parts):
    """out (D) = sums over the rows of x (M, D), of 64 rows and then of those. Words: x, out, some (D), M, D."""
    w = words_of(words)
    rows, columns = w[3], w[4]
    d0, d1 = share(part, parts, columns)
    here = d1 - d0
    out, some = floats(w[1] + 4 * d0, here), floats(w[2] + 4 * d0, here)
    for d in range(here):
        out[d] = 0
    for start in range(0, rows, 64):
        for d in range(here):
            some[d] = 0
        for i in range(start, min(rows, start + 64)):
            x = floats(w[0] + 4 * (i * columns + d0), here)
            for d in range(here):
                some[d] += x[d]
        for d in range(here):
            out[d] += some[d]
