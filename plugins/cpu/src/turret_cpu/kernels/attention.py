"""Causal attention one head at a time, every product up to the diagonal only."""

# mypy: disable-error-code="no-untyped-def"
from __future__ import annotations

import numpy as np

from .compiler import inlined, kernel
from .intrinsics import PANEL, floats, longs, word_float, words_of
from .product import ROWS, STRIP, block, copy_cells, pack, pack_turned, panels_of, share
from .rows import exp_in_place, row_max

QUERIES = 48  # of a block in the VJP: its scores stay in the first- and second-level cache
KEYS = 12  # that share one starting row in the products over queries
GAP = 16  # between rows of a buffer, so that rows of a power of two do not meet in one cache set


@inlined
def fill_zero(address, n):
    x = floats(address, n)
    for i in range(n):
        x[i] = 0


@inlined
def softmax_strip(p, ld, rows, columns, first, scale):
    """Scores to probabilities in place; row i sees the keys before first + i."""
    for i in range(rows):
        row, n = floats(p + 4 * i * ld, columns), min(columns, first + i)
        for j in range(n):
            row[j] *= scale
        total = exp_in_place(row, n, row_max(row, n))
        share_of = np.float32(1) / total
        for j in range(n):
            row[j] *= share_of
        rest = floats(p + 4 * (i * ld + n), columns - n)
        for j in range(columns - n):
            rest[j] = 0


@kernel
def attend(words, part, parts):
    """Words: q, k, v, out, probabilities, B, T, S, H, K, d, offset, scale, scratch, its size a share, strides.

    Strides: the elements between batches and between tokens, of q, k and v.
    Scratch: cells, zeros (S or d padded), keys (S padded, d), values (d padded, S).
    """
    w = words_of(words)
    queries, keys, heads, kv_heads, d, offset = w[6], w[7], w[8], w[9], w[10], w[11]
    scale, cells = np.float32(word_float(w[12])), w[13] + 4 * part * w[14]
    zeros = cells + 4 * ROWS * PANEL
    turned = zeros + 4 * (panels_of(keys) + panels_of(d)) * PANEL
    values = turned + 4 * panels_of(keys) * PANEL * d
    fill_zero(zeros, (panels_of(keys) + panels_of(d)) * PANEL)
    u0, u1 = share(part, parts, w[5] * heads)
    packed = -1
    for u in range(u0, u1):
        b, h = u // heads, u % heads
        kv = h // (heads // kv_heads)
        if b * kv_heads + kv != packed:
            pack_turned(w[1] + 4 * (b * w[17] + kv * d), w[18], d, keys, turned, d * PANEL)
            pack(w[2] + 4 * (b * w[19] + kv * d), w[20], keys, d, values, keys * PANEL)
            packed = b * kv_heads + kv
        for i in range(0, queries, STRIP):
            high = min(STRIP, queries - i)
            seen = min(keys, offset + i + high)
            at, start = 4 * ((b * queries + i) * heads + h) * d, 4 * (b * w[15] + i * w[16] + h * d)
            p = w[4] + 4 * (u * queries + i) * keys
            wide = min(keys, panels_of(seen) * PANEL)
            block(p, keys, zeros, 0, w[0] + start, w[16], 1, 0, turned, d * PANEL, d, high, wide, cells)
            softmax_strip(p, keys, high, keys, offset + i + 1, scale)
            block(w[3] + at, heads * d, zeros, 0, p, keys, 1, 0, values, keys * PANEL, seen, high, d, cells)


@inlined
def seen_keys(p, ld, rows, columns):
    """Keys with a probability other than zero in any of the rows, rounded up to whole panels."""
    seen = 0
    for i in range(rows):
        start = (columns - 1) // PANEL * PANEL
        while start >= seen:
            n = min(PANEL, columns - start)
            x = floats(p + 4 * (i * ld + start), n)
            some = False
            for j in range(n):
                some |= x[j] != 0
            if some:
                seen = start + n
            start -= PANEL
    return seen


@inlined
def score_gradients(p, dp, copy, ld, rows, columns, seen, scale):
    """dp (rows, ld) becomes scale * p * (dp - sum(p dp)) and copy becomes p (rows, columns); zeros from `seen` on."""
    for i in range(rows):
        x, g, to = floats(p + 4 * i * columns, seen), floats(dp + 4 * i * ld, seen), floats(copy + 4 * i * ld, seen)
        total = np.float32(0)
        for j in range(seen):
            total += x[j] * g[j]
        for j in range(seen):
            g[j] = x[j] * (g[j] - total) * scale
            to[j] = x[j]
        fill_zero(dp + 4 * (i * ld + seen), columns - seen)
        fill_zero(copy + 4 * (i * ld + seen), columns - seen)


@inlined
def add_turned(to, width, a, ld, right, stride, rows, limits, most, cells):
    """to (most, width) += a^T right: a (rows, ld); key j takes part from the first strip whose limit lies beyond it."""
    strip = 0
    for j in range(0, most, KEYS):
        while limits[strip] <= j:
            strip += 1
        skipped = strip * STRIP
        place = to + 4 * j * width
        left, below, depth = a + 4 * (skipped * ld + j), right + 4 * skipped * PANEL, rows - skipped
        few = min(KEYS, most - j)
        block(place, width, place, width, left, 1, ld, STRIP, below, stride, depth, few, width, cells)


@kernel
def attend_vjp(words, part, parts):
    """Words: dy, q, k, v, probabilities, dq, dk, dv, B, T, S, H, K, d, scale, scratch, its size a share, strides.

    Strides: the elements between batches and between tokens, of q, k and v.
    Scratch: cells, limits, zeros (S and d padded), v turned (S padded, d), k, dk, dv (S, d padded), q, dy (T, d
    padded), and for a block of queries p and dp (QUERIES, S + GAP).
    """
    w = words_of(words)
    queries, keys, heads, kv_heads, d = w[9], w[10], w[11], w[12], w[13]
    scale, cells = np.float32(word_float(w[14])), w[15] + 4 * part * w[16]
    width, ld, group = panels_of(d) * PANEL, keys + GAP, heads // kv_heads
    limits = longs(cells + 4 * ROWS * PANEL, QUERIES // STRIP)
    zeros = cells + 4 * (ROWS * PANEL + 2 * QUERIES)
    turned = zeros + 4 * (panels_of(keys) * PANEL + width)
    k, dk = turned + 4 * panels_of(keys) * PANEL * d, turned + 4 * (panels_of(keys) * PANEL * d + keys * width)
    dv, q = dk + 4 * keys * width, dk + 8 * keys * width
    dy, p, dp = q + 4 * queries * width, q + 8 * queries * width, q + 4 * (2 * queries * width + QUERIES * ld)
    fill_zero(zeros, panels_of(keys) * PANEL + width)
    u0, u1 = share(part, parts, w[8] * kv_heads)
    for u in range(u0, u1):
        b, kv = u // kv_heads, u % kv_heads
        source = 4 * (b * keys * kv_heads + kv) * d
        pack_turned(w[3] + 4 * (b * w[21] + kv * d), w[22], d, keys, turned, d * PANEL)
        pack(w[2] + 4 * (b * w[19] + kv * d), w[20], keys, d, k, keys * PANEL)
        fill_zero(dk, 2 * keys * width)
        for h in range(kv * group, (kv + 1) * group):
            head = 4 * (b * queries * heads + h) * d
            pack(w[1] + 4 * (b * w[17] + h * d), w[18], queries, d, q, queries * PANEL)
            pack(w[0] + head, heads * d, queries, d, dy, queries * PANEL)
            for r in range(0, queries, QUERIES):
                high, most = min(QUERIES, queries - r), 0
                for i in range(0, high, STRIP):
                    few = min(STRIP, high - i)
                    at, buffer = head + 4 * (r + i) * heads * d, 4 * i * ld
                    given = w[4] + 4 * ((b * heads + h) * queries + r + i) * keys
                    seen = seen_keys(given, keys, few, keys)
                    block(dp + buffer, ld, zeros, 0, w[0] + at, heads * d, 1, 0, turned, d * PANEL, d, few, seen, cells)
                    score_gradients(given, dp + buffer, p + buffer, ld, few, keys, seen, scale)
                    block(w[5] + at, heads * d, zeros, 0, dp + buffer, ld, 1, 0, k, keys * PANEL, seen, few, d, cells)
                    limits[i // STRIP], most = seen, max(most, seen)
                add_turned(dk, width, dp, ld, q + 4 * r * PANEL, queries * PANEL, high, limits, most, cells)
                add_turned(dv, width, p, ld, dy + 4 * r * PANEL, queries * PANEL, high, limits, most, cells)
        copy_cells(dk, width, w[6] + source, kv_heads * d, keys, d)
        copy_cells(dv, width, w[7] + source, kv_heads * d, keys, d)
