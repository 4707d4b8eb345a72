"""Causal attention in memory linear in the tokens: blocks of queries against tiles of keys that stay in cache.

The scores of a block and a tile are S = scale q k^T. Source: Dao et al. 2022, algorithms 1 and 4. Both directions sum
a score over the same order, so the VJP rebuilds the very weights that the forward pass saw. A strip of a block, that
is STRIP queries, goes no further than the last key one of them sees.
"""

# mypy: disable-error-code="no-untyped-def"
from __future__ import annotations

import numpy as np

from .attention import GAP, fill_zero
from .compiler import inlined, kernel
from .intrinsics import PANEL, floats, move_panel, shifted, tile6, word_float, words_of
from .mathematics import exp_down
from .product import STRIP, copy_cells, pack, pack_turned, panels_of, share, strips
from .rows import row_max

QUERIES = 96  # of a block; whole strips and whole panels, as are the keys of a tile
_LEAST = np.float32(-np.inf)


@inlined
def strips_of(rows):
    return (rows + STRIP - 1) // STRIP


@inlined
def line_from(address):
    """The start of the first cache line from an address on: vectors that lie across two lines are read twice."""
    return (address + 63) // 64 * 64


@inlined
def seen_by(i, first, columns):
    """Keys of a tile that the strip of rows from i on sees, where row 0 sees `first`, the next one more, and so on."""
    return max(0, min(columns, first + i + STRIP - 1))


@inlined
def strip_seeing(j, first):
    """The first row of the first strip that sees key j of a tile."""
    return max(0, (j - first + 1) // STRIP * STRIP)


@inlined
def take_rows(source, ld, rows, d, to):
    """Rows of unit stride, close together, and rows of 0 up to a whole strip."""
    whole = d // PANEL * PANEL
    for i in range(rows):
        for j in range(0, whole, PANEL):
            move_panel(to + 4 * (i * d + j), source + 4 * (i * ld + j))
    copy_cells(source + 4 * whole, ld, to + 4 * whole, d, rows, d - whole)
    fill_zero(to + 4 * rows * d, (strips_of(rows) * STRIP - rows) * d)


@inlined
def fill(address, n, value):
    x = floats(address, n)
    for i in range(n):
        x[i] = value


@inlined
def multiply(address, n, by):
    x = floats(address, n)
    for i in range(n):
        x[i] *= by


@inlined
def products(s, ld, zeros, left, turned, d, rows, columns, first):
    """s = left (rows, d) times a turned tile, where a strip sees a panel; whole panels and strips are written."""
    for p in range(panels_of(columns)):
        for i in range(strip_seeing(p * PANEL, first), rows, STRIP):
            tile6(s + 4 * (i * ld + p * PANEL), ld, zeros, 0, left + 4 * i * d, d, 1, turned + 4 * p * PANEL * d, d)


@inlined
def finite(top):
    """What scores are compared with where none was above -inf yet: their weight is then 0, and NaN stays NaN."""
    return np.float32(0) if top == _LEAST else top


@inlined
def weigh(s, ld, rows, columns, first, out, width, row_tops, row_sums):
    """Scores to exp(score - top), 0 where unseen; out (rows, width) and the sums follow a top that rises."""
    tops, sums = floats(row_tops, rows), floats(row_sums, rows)
    for i in range(rows):
        n, end = max(0, min(columns, first + i)), seen_by(i // STRIP * STRIP, first, columns)
        fill_zero(s + 4 * (i * ld + n), end - n)
        if n == 0:
            continue
        row = floats(s + 4 * i * ld, n)
        top = row_max(row, n)
        if top > tops[i]:
            less = exp_down(shifted(tops[i], top))
            line = floats(out + 4 * i * width, width)
            for j in range(width):
                line[j] *= less
            sums[i] *= less
            tops[i] = top
        top, total = finite(tops[i]), np.float32(0)
        for j in range(n):
            weight = exp_down(shifted(row[j], top))
            row[j] = weight
            total += weight
        sums[i] += total


@inlined
def mix(out, width, s, ld, values, stride, rows, columns, first):
    """out (rows, width) += weights times a packed tile."""
    for p in range(width // PANEL):
        for i in range(0, rows, STRIP):
            to = out + 4 * (i * width + p * PANEL)
            depth = seen_by(i, first, columns)
            tile6(to, width, to, width, s + 4 * i * ld, ld, 1, values + 4 * p * stride, depth)


@inlined
def cost_of_rows(rows, keys, offset):
    """The scores of all blocks of a head's rows, at least one each."""
    cost = 0
    for r in range(0, rows, QUERIES):
        high = min(QUERIES, rows - r)
        cost += high * max(1, min(keys, offset + r + high))
    return cost


@kernel
def attend(words, part, parts):
    """Words: q, k, v, out, row_max, row_sum, B, T, S, H, K, d, offset, scale, tile, scratch, its size a share, strides.

    Strides: the elements between batches and between tokens, of q, k and v. A tile has whole panels of keys.
    Scratch: zeros (PANEL), q (QUERIES, d), out (QUERIES, d padded), scores (QUERIES, tile + GAP), keys (S in whole
    tiles, d), values (S in whole tiles, d padded).
    """
    w = words_of(words)
    queries, keys, heads, kv_heads, d, offset, tile = w[7], w[8], w[9], w[10], w[11], w[12], w[14]
    scale, zeros = np.float32(word_float(w[13])), line_from(w[15] + 4 * part * w[16])
    width, ld, group = panels_of(d) * PANEL, tile + GAP, heads // kv_heads
    rows = zeros + 4 * PANEL
    out, s = rows + 4 * QUERIES * d, rows + 4 * QUERIES * (d + width)
    turned = s + 4 * QUERIES * ld
    values = turned + 4 * ((keys + tile - 1) // tile) * tile * d
    fill_zero(zeros, PANEL)
    total, before = w[6] * heads * cost_of_rows(queries, keys, offset), 0
    packed, ready = -1, 0
    for u in range(w[6] * heads):
        b, h = u // heads, u % heads
        kv = h // group
        k, v = w[1] + 4 * (b * w[19] + kv * d), w[2] + 4 * (b * w[21] + kv * d)
        for r in range(0, queries, QUERIES):
            high = min(QUERIES, queries - r)
            seen, cost = max(0, min(keys, offset + r + high)), cost_of_rows(high, keys, offset + r)
            middle = (before + cost // 2) * parts
            before += cost
            if middle < total * part or middle >= total * (part + 1):
                continue
            if b * kv_heads + kv != packed:
                packed, ready = b * kv_heads + kv, 0
            tops, sums = w[4] + 4 * (u * queries + r), w[5] + 4 * (u * queries + r)
            fill(tops, high, _LEAST)
            fill_zero(sums, high)
            fill_zero(out, QUERIES * width)
            take_rows(w[0] + 4 * (b * w[17] + r * w[18] + h * d), w[18], high, d, rows)
            multiply(rows, high * d, scale)
            for j in range(0, seen, tile):
                if j >= ready:
                    ready = min(keys, j + tile)
                    pack_turned(k + 4 * j * w[20], w[20], d, ready - j, turned + 4 * j * d, d * PANEL)
                    pack(v + 4 * j * w[22], w[22], ready - j, d, values + 4 * j * width, tile * PANEL)
                columns, first = min(tile, seen - j), offset + r + 1 - j
                products(s, ld, zeros, rows, turned + 4 * j * d, d, high, columns, first)
                weigh(s, ld, high, columns, first, out, width, tops, sums)
                mix(out, width, s, ld, values + 4 * j * width, tile * PANEL, high, columns, first)
            divide_rows(out, width, sums, w[3] + 4 * ((b * queries + r) * heads + h) * d, heads * d, high, d)


@inlined
def divide_rows(source, lds, row_sums, to, ldt, rows, columns):
    """Rows over their sums; 0 where there was nothing to sum."""
    sums = floats(row_sums, rows)
    for i in range(rows):
        x, y = floats(source + 4 * i * lds, columns), floats(to + 4 * i * ldt, columns)
        less = np.float32(0) if sums[i] == 0 else np.float32(1) / sums[i]
        for j in range(columns):
            y[j] = x[j] * less


@inlined
def dot_rows(a, b, ld, rows, columns, to):
    dots = floats(to, rows)
    for i in range(rows):
        x, y = floats(a + 4 * i * ld, columns), floats(b + 4 * i * ld, columns)
        total = np.float32(0)
        for j in range(columns):
            total += x[j] * y[j]
        dots[i] = total


@inlined
def score_gradients(s, ds, ld, rows, columns, first, row_tops, row_sums, row_dots):
    """s becomes P = exp(s - top) / sum and ds becomes P (ds - dot), both 0 where unseen."""
    tops, sums, dots = floats(row_tops, rows), floats(row_sums, rows), floats(row_dots, rows)
    for i in range(rows):
        n, end = max(0, min(columns, first + i)), seen_by(i // STRIP * STRIP, first, columns)
        end = strips_of(end) * STRIP
        fill_zero(s + 4 * (i * ld + n), end - n)
        fill_zero(ds + 4 * (i * ld + n), end - n)
        top, dot = finite(tops[i]), dots[i]
        less = np.float32(0) if sums[i] == 0 else np.float32(1) / sums[i]
        p, g = floats(s + 4 * i * ld, n), floats(ds + 4 * i * ld, n)
        for j in range(n):
            weight = exp_down(shifted(p[j], top)) * less
            p[j] = weight
            g[j] = weight * (g[j] - dot)


@inlined
def add_rows(to, ldt, s, ld, packed, stride, rows, columns, first, d, cells):
    """to (rows, d) += s (rows, columns) times a packed tile."""
    for p in range(panels_of(d)):
        here, below = min(PANEL, d - p * PANEL), packed + 4 * p * stride
        for i in range(0, rows, STRIP):
            few, depth = min(STRIP, rows - i), seen_by(i, first, columns)
            c = to + 4 * (i * ldt + p * PANEL)
            if here == PANEL:
                strips(c, ldt, c, ldt, s + 4 * i * ld, ld, 1, 0, below, depth, few)
            else:
                copy_cells(c, ldt, cells, PANEL, few, here)
                strips(cells, PANEL, cells, PANEL, s + 4 * i * ld, ld, 1, 0, below, depth, few)
                copy_cells(cells, PANEL, c, ldt, few, here)


@inlined
def add_turned(to, width, s, ld, packed, rows, columns, first):
    """to (columns in whole strips, width) += s^T (columns, rows) times a packed block of queries."""
    for j in range(0, columns, STRIP):
        i = strip_seeing(j, first)
        for p in range(width // PANEL):
            c = to + 4 * (j * width + p * PANEL)
            if i < rows:
                left, below = s + 4 * (i * ld + j), packed + 4 * (p * QUERIES + i) * PANEL
                tile6(c, width, c, width, left, 1, ld, below, rows - i)


@kernel
def attend_vjp(words, part, parts):
    """Words: dy, q, k, v, out, row_max, row_sum, dq, dk, dv, B, T, S, H, K, d, offset, scale, tile, scratch, its size.

    Then strides: the elements between batches and between tokens, of q, k and v. dk and dv have a place for each of
    the H heads of queries: (B, S, H, d). A tile has whole panels and whole strips of keys.
    Scratch: cells (STRIP, PANEL), zeros (PANEL), dots (T), for a tile of keys k and v turned (tile, d), k, dk and dv
    (tile, d padded), for a block of queries q and dy (QUERIES, d), q and dy packed (QUERIES, d padded), s and ds
    (QUERIES, tile + GAP).
    """
    w = words_of(words)
    queries, keys, heads, kv_heads, d, offset, tile = w[11], w[12], w[13], w[14], w[15], w[16], w[18]
    scale, cells = np.float32(word_float(w[17])), line_from(w[19] + 4 * part * w[20])
    width, ld, group = panels_of(d) * PANEL, tile + GAP, heads // kv_heads
    zeros, dots = cells + 4 * STRIP * PANEL, cells + 4 * (STRIP + 1) * PANEL
    turned_k = line_from(dots + 4 * queries)
    turned_v, k = turned_k + 4 * tile * d, turned_k + 8 * tile * d
    dk, dv = k + 4 * tile * width, k + 8 * tile * width
    q_rows = k + 12 * tile * width
    dy_rows, q_panels = q_rows + 4 * QUERIES * d, q_rows + 8 * QUERIES * d
    dy_panels, s = q_panels + 4 * QUERIES * width, q_panels + 8 * QUERIES * width
    ds = s + 4 * QUERIES * ld
    fill_zero(zeros, PANEL)
    u0, u1 = share(part, parts, w[10] * heads)
    for u in range(u0, u1):
        b, h = u // heads, u % heads
        kv, at = h // group, 4 * (b * queries * heads + h) * d
        dot_rows(w[0] + at, w[4] + at, heads * d, queries, d, dots)
        for i in range(queries):
            fill_zero(w[7] + at + 4 * i * heads * d, d)
        for j in range(0, keys, tile):
            columns = min(tile, keys - j)
            source_k = w[2] + 4 * (b * w[23] + kv * d + j * w[24])
            source_v = w[3] + 4 * (b * w[25] + kv * d + j * w[26])
            pack_turned(source_k, w[24], d, columns, turned_k, d * PANEL)
            pack_turned(source_v, w[26], d, columns, turned_v, d * PANEL)
            pack(source_k, w[24], columns, d, k, tile * PANEL)
            for p in range(panels_of(d)):
                multiply(k + 4 * p * tile * PANEL, columns * PANEL, scale)
            fill_zero(dk, 2 * tile * width)
            for r in range(max(0, j - offset) // QUERIES * QUERIES, queries, QUERIES):
                high, first = min(QUERIES, queries - r), offset + r + 1 - j
                source, place = w[1] + 4 * (b * w[21] + r * w[22] + h * d), at + 4 * r * heads * d
                take_rows(source, w[22], high, d, q_rows)
                multiply(q_rows, high * d, scale)
                take_rows(w[0] + place, heads * d, high, d, dy_rows)
                pack(q_rows, d, high, d, q_panels, QUERIES * PANEL)
                pack(dy_rows, d, high, d, dy_panels, QUERIES * PANEL)
                products(s, ld, zeros, q_rows, turned_k, d, high, columns, first)
                products(ds, ld, zeros, dy_rows, turned_v, d, high, columns, first)
                row = 4 * (u * queries + r)
                score_gradients(s, ds, ld, high, columns, first, w[5] + row, w[6] + row, dots + 4 * r)
                add_turned(dv, width, s, ld, dy_panels, high, columns, first)
                add_turned(dk, width, ds, ld, q_panels, high, columns, first)
                add_rows(w[7] + place, heads * d, ds, ld, k, tile * PANEL, high, columns, first, d, cells)
            to = 4 * ((b * keys + j) * heads + h) * d
            copy_cells(dk, width, w[8] + to, heads * d, columns, d)
            copy_cells(dv, width, w[9] + to, heads * d, columns, d)


@kernel
def sum_groups(words, part, parts):
    """out (M, K, d) = sums over the groups of x (M, K, H / K, d), in order. Words: x, out, M * K, H / K, d."""
    w = words_of(words)
    group, d = w[3], w[4]
    r0, r1 = share(part, parts, w[2])
    for r in range(r0, r1):
        to = floats(w[1] + 4 * r * d, d)
        for j in range(d):
            to[j] = 0
        for g in range(group):
            x = floats(w[0] + 4 * (r * group + g) * d, d)
            for j in range(d):
                to[j] += x[j]
