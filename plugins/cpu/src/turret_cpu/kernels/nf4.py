"""Weights of four bits: packing, unpacking, and products that unpack a tile at a time.

A packed weight is six words: codes, scales (float32, or uint8 where there are groups), group scales or 0, offset, the
binary logarithm of the block, and the table of coded scales or 0. A weight is known by its number, row-major over the
matrix. A table of coded scales has the levels, the middles between them, and the least that a scale may be.
"""

# mypy: disable-error-code="no-untyped-def"
from __future__ import annotations

import numpy as np

from turret.derived.quantized_linear import GROUP, dynamic_levels, linear_levels
from turret.spi import NF4_LEVELS, Host, ScaleCode

from .compiler import STRICT, inlined, kernel
from .intrinsics import PANEL, bits_float, fetch, floats, integers, word_float, words_of
from .nibbles import ABREAST, AVX2, CHUNK, dots1, dots2, dots3, dots4, octets, order, spread
from .product import DEPTH, ROWS, block, grid, pack, pack_turned, panels_of, share

LEAST = 32  # weights in the smallest block
TILE = 4096  # weights unpacked by one share at a time
SORTED = 2**15  # places of x sorted at a time: they stay in the second-level cache, and lines of codes are read whole
DEEP = 1024  # places of a row at a time in a product of few rows: four unpacked lines fill half the first-level cache
PANELS = 2**15  # weights in panels at a time: they stay in the second-level cache
LINE, DEEP_LINE = DEPTH + 16, DEEP + 16  # between unpacked rows, so that they do not meet in one cache set
ROOM = TILE // LEAST + 2  # scales of a tile
LONG_ROOM = SORTED // LEAST + 2
ZERO_CODE = NF4_LEVELS.index(0.0)

SCALE_LEVELS = 256


def midpoints(levels: Host) -> Host:
    return ((levels[:-1].astype(np.float64) + levels[1:]) / 2).astype(np.float32)


LEVELS = np.array(NF4_LEVELS, np.float32)
MIDPOINTS = midpoints(LEVELS)
TABLES: dict[ScaleCode, Host] = {
    "dynamic": np.concatenate([dynamic_levels(), midpoints(dynamic_levels()), np.array([-np.inf], np.float32)]),
    "linear": np.concatenate([linear_levels(), midpoints(linear_levels()), np.zeros(1, np.float32)]),
}
ORDER = np.array(order())


@inlined(fastmath=STRICT)
def nearest(unit):
    """The code of the nearest level; the lower one at a tie, and 0 for NaN."""
    code = np.int32(0)
    for middle in MIDPOINTS:
        code += np.int32(unit > middle)
    return np.uint8(code)


@inlined(fastmath=STRICT)
def magnitude(x, n):
    """The largest of n magnitudes; NaN where one is, since its bits are the largest."""
    bits, top = integers(x, n), np.int32(0)
    for i in range(n):
        top = max(top, np.int32(bits[i] & 0x7FFFFFFF))
    return bits_float(top)


@kernel(fastmath=STRICT)
def pack_weights(words, part, parts):
    """Words: weight, codes, scales, their number, binary logarithm of the block."""
    w = words_of(words)
    count, shift = w[3], w[4]
    b0, b1 = share(part, parts, ((count - 1) >> shift) + 1)
    for b in range(b0, b1):
        start = b << shift
        n = min(1 << shift, count - start)
        x, codes = floats(w[0] + 4 * start, n), octets(w[1] + start // 2, (n + 1) // 2)
        scale = magnitude(w[0] + 4 * start, n)
        floats(w[2] + 4 * b, 1)[0] = scale
        divisor = np.float32(1) if scale == 0 else scale
        for i in range(n // 2):
            codes[i] = nearest(x[2 * i] / divisor) << 4 | nearest(x[2 * i + 1] / divisor)
        if n % 2:
            codes[n // 2] = nearest(x[n - 1] / divisor) << 4 | ZERO_CODE


@kernel(fastmath=STRICT)
def pack_scales(words, part, parts):
    """Words: scales less their offset, codes, group scales, their number, table."""
    w = words_of(words)
    middles = floats(w[4] + 4 * SCALE_LEVELS, SCALE_LEVELS - 1)
    g0, g1 = share(part, parts, (w[3] + GROUP - 1) // GROUP)
    for g in range(g0, g1):
        n = min(GROUP, w[3] - g * GROUP)
        x, codes = floats(w[0] + 4 * g * GROUP, n), octets(w[1] + g * GROUP, n)
        scale = magnitude(w[0] + 4 * g * GROUP, n)
        floats(w[2] + 4 * g, 1)[0] = scale
        divisor = np.float32(1) if scale == 0 else scale
        for i in range(n):
            unit, code, step = x[i] / divisor, 0, SCALE_LEVELS
            while step > 1:
                step //= 2
                if unit > middles[code + step - 1]:
                    code += step
            codes[i] = code


@inlined(fastmath=set())
def scales_of(w, start, count, room):
    """Where the scale of block b stands at 4 b, for the blocks of `count` weights from `start` on."""
    if w[2] == 0:
        return w[1]
    first, last = start >> w[4], (start + count - 1) >> w[4]
    codes, to = octets(w[1] + first, last - first + 1), floats(room, last - first + 1)
    levels, offset = floats(w[5], 2 * SCALE_LEVELS), np.float32(word_float(w[3]))
    least = levels[2 * SCALE_LEVELS - 1]
    for i in range(last - first + 1):
        group = floats(w[2] + 4 * ((first + i) // GROUP), 1)
        scale = levels[codes[i]] * group[0] + offset
        to[i] = least if scale < least else scale
    return room - 4 * first


@inlined(fastmath=STRICT)
def one_by_one(codes, scales, shift, start, count, to):
    """The weights from `start` on, without vectors."""
    if count > 0:
        x, skip = floats(to, count), start & 1
        bytes_, factors = octets(codes + start // 2, count), floats(scales, (start + count) >> shift)
        if skip:
            x[0] = LEVELS[bytes_[0] & 15] * factors[start >> shift]
        for i in range((count - skip) // 2):
            byte, factor = bytes_[i + skip], factors[(start + skip + 2 * i) >> shift]
            x[skip + 2 * i] = LEVELS[byte >> 4] * factor
            x[skip + 2 * i + 1] = LEVELS[byte & 15] * factor
        if (count - skip) % 2:
            x[count - 1] = LEVELS[bytes_[(count - skip) // 2 + skip] >> 4] * factors[(start + count - 1) >> shift]


@inlined
def unpacked(w, start, count, to, room):
    """Weights start..start + count, as float32. Room: for their scales."""
    codes, shift, scales, done = w[0], w[4], scales_of(w, start, count, room), 0
    if AVX2:
        done = min(count, -start & (LEAST - 1))
        one_by_one(codes, scales, shift, start, done, to)
        chunks = (count - done) // CHUNK
        spread(codes + (start + done) // 2, scales, start + done, shift, chunks, to + 4 * done)
        done += chunks * CHUNK
    one_by_one(codes, scales, shift, start + done, count - done, to + 4 * done)


@inlined
def fetch_codes(w, start, count):
    """Asks for the codes of weights soon unpacked: a processor foresees whole lines, not pieces of some."""
    for at in range(w[0] + start // 2, w[0] + (start + count) // 2, 64):
        fetch(at)


@kernel
def unpack_weights(words, part, parts):
    """Words: packed weight, to, their number, scratch, its size a share."""
    w = words_of(words)
    t0, t1 = share(part, parts, (w[7] + TILE - 1) // TILE)
    for t in range(t0, t1):
        unpacked(w, t * TILE, min(TILE, w[7] - t * TILE), w[6] + 4 * t * TILE, w[8] + 4 * part * w[9])


@inlined
def sort_places(x, n, to):
    """The places of whole chunks of x, as looked-up weights lie."""
    for c in range(n // CHUNK):
        source, target = floats(x + 4 * c * CHUNK, CHUNK), floats(to + 4 * c * CHUNK, CHUNK)
        for i in range(CHUNK):
            target[i] = source[ORDER[i]]


@inlined
def looked_up(w, o0, o1, scratch):
    """y += x weight^T for whole chunks: levels go from their registers into the products with ABREAST rows of x."""
    outs, ins = w[10], w[11]
    room = scratch + 4 * SORTED
    for m in range(0, w[9], ABREAST):
        count = min(ABREAST, w[9] - m)
        wide = SORTED // count // CHUNK * CHUNK
        for k in range(0, ins, wide):
            here = min(wide, ins - k)
            for i in range(count):
                sort_places(w[6] + 4 * ((m + i) * ins + k), here, scratch + 4 * i * wide)
            for o in range(o0, o1):
                start, y, chunks = o * ins + k, w[8] + 4 * (m * outs + o), here // CHUNK
                codes, scales = w[0] + start // 2, scales_of(w, start, here, room)
                if count == 1:
                    dots1(codes, scales, start, w[4], chunks, scratch, wide, y, outs)
                elif count == 2:
                    dots2(codes, scales, start, w[4], chunks, scratch, wide, y, outs)
                elif count == 3:
                    dots3(codes, scales, start, w[4], chunks, scratch, wide, y, outs)
                else:
                    dots4(codes, scales, start, w[4], chunks, scratch, wide, y, outs)


@inlined
def dots(line, x, n, y):
    """One product of two lines, added to y."""
    a, p, total = floats(line, n), floats(x, n), np.float32(0)
    for k in range(n):
        total += a[k] * p[k]
    floats(y, 1)[0] += total


@inlined
def dots_4x2(lines, x, ldx, n, y, ldy):
    """The products of four neighbouring unpacked lines with two rows of x, added to y."""
    a, b, c, d = (
        floats(lines, n),
        floats(lines + 4 * DEEP_LINE, n),
        floats(lines + 8 * DEEP_LINE, n),
        floats(lines + 12 * DEEP_LINE, n),
    )
    p, q, u, v = floats(x, n), floats(x + 4 * ldx, n), floats(y, 4), floats(y + 4 * ldy, 4)
    ap = bp = cp = dp = aq = bq = cq = dq = np.float32(0)
    for k in range(n):
        ap += a[k] * p[k]
        bp += b[k] * p[k]
        cp += c[k] * p[k]
        dp += d[k] * p[k]
        aq += a[k] * q[k]
        bq += b[k] * q[k]
        cq += c[k] * q[k]
        dq += d[k] * q[k]
    u[0] += ap
    u[1] += bp
    u[2] += cp
    u[3] += dp
    v[0] += aq
    v[1] += bq
    v[2] += cq
    v[3] += dq


@inlined
def four_lines(w, o0, o1, scratch):
    """y += x weight^T: up to four lines of the weight unpacked at a time, and used for every row of x."""
    count, outs, ins = w[9], w[10], w[11]
    room, pieces = scratch + 16 * DEEP_LINE, (ins + DEEP - 1) // DEEP
    for o in range(o0, o1, 4):
        lines = min(4, o1 - o)
        for piece in range(pieces):
            k, end = share(piece, pieces, ins)
            n = end - k
            for i in range(lines):
                unpacked(w, (o + i) * ins + k, n, scratch + 4 * i * DEEP_LINE, room)
            paired = count // 2 * 2 if lines == 4 else 0
            for m in range(0, paired, 2):
                dots_4x2(scratch, w[6] + 4 * (m * ins + k), ins, n, w[8] + 4 * (m * outs + o), outs)
            for m in range(paired, count):
                for i in range(lines):
                    dots(scratch + 4 * i * DEEP_LINE, w[6] + 4 * (m * ins + k), n, w[8] + 4 * (m * outs + o + i))


@kernel
def few_rows(words, part, parts):
    """y = x weight^T + bias for few rows. Words: packed weight, x, bias or 0, y, M, O, I, scratch, its size a share.

    Scratch: SORTED, LONG_ROOM.
    """
    w = words_of(words)
    count, outs, ins, scratch = w[9], w[10], w[11], w[12] + 4 * part * w[13]
    o0, o1 = share(part, parts, (outs + 3) // 4)
    o0, o1 = 4 * o0, min(outs, 4 * o1)
    for m in range(count):
        y = floats(w[8] + 4 * m * outs, outs)
        if w[7] == 0:
            for o in range(o0, o1):
                y[o] = 0
        else:
            bias = floats(w[7], outs)
            for o in range(o0, o1):
                y[o] = bias[o]
    if AVX2 and ins % CHUNK == 0 and count <= 2 * ABREAST:
        looked_up(w, o0, o1, scratch)
    else:
        four_lines(w, o0, o1, scratch)


@kernel
def product(words, part, parts):
    """c (M, N) = init (N) + a weight for the packed weight (K, N), or its transpose where `turned`.

    Words: packed weight, a, turned, init, c, M, N, K, scratch, its size a share. Scratch: cells, lines, scales, panels.
    """
    w = words_of(words)
    rows, columns, depth = w[10], w[11], w[12]
    cells = w[13] + 4 * part * w[14]
    lines = cells + 4 * ROWS * PANEL
    room = lines + 4 * PANEL * LINE
    packed = room + 4 * ROOM
    r0, r1, c0, c1 = grid(part, parts, rows, columns, 0, 3)
    # lines of codes are cut into pieces as long as they may be
    most = DEPTH if w[7] != 0 else DEPTH // 4
    groups = (panels_of(c1 - c0) * PANEL * most + PANELS - 1) // PANELS
    for group in range(groups):
        p0, p1 = share(group, groups, panels_of(c1 - c0))
        j = c0 + p0 * PANEL
        wide = min(c1 - j, (p1 - p0) * PANEL)
        for k in range(0, depth, most):
            deep = min(most, depth - k)
            stride = (deep + 1) * PANEL  # so that panels do not meet in one cache set
            if w[7] != 0:
                for p in range(panels_of(wide)):
                    here = min(PANEL, wide - p * PANEL)
                    for i in range(here):
                        line = (j + p * PANEL + i) * depth + k
                        fetch_codes(w, line + PANEL * depth, deep)
                        unpacked(w, line, deep, lines + 4 * i * LINE, room)
                    pack_turned(lines, LINE, deep, here, packed + 4 * p * stride, stride)
            else:
                for i in range(deep):
                    unpacked(w, (k + i) * columns + j, wide, lines, room)
                    pack(lines, wide, 1, wide, packed + 4 * i * PANEL, stride)
            for i in range(r0, r1, ROWS):
                to = w[9] + 4 * (i * columns + j)
                start, ldi = (w[8] + 4 * j, 0) if k == 0 else (to, columns)
                a, high = w[6] + 4 * (i * depth + k), min(ROWS, r1 - i)
                # the rows of a lie `depth` apart, a strip of six after the other
                block(to, columns, start, ldi, a, depth, 1, 6 * depth, packed, stride, deep, high, wide, cells)


FEW_SCRATCH = SORTED + LONG_ROOM
PRODUCT_SCRATCH = ROWS * PANEL + PANEL * LINE + ROOM + PANELS + 4 * PANELS // DEPTH
