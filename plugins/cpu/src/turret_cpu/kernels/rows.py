"""Kernels over the last axis: softmax, normalization and cross entropy."""

# mypy: disable-error-code="no-untyped-def"
from __future__ import annotations

import math

import numpy as np

from .compiler import inlined, kernel
from .intrinsics import bits_float, doubles, float_bits, floats, integers, shifted, word_float, words_of
from .mathematics import exp
from .product import share

_LEAST = np.int32(-(2**31))
_UNSIGNED = np.int32(2**31 - 1)


@inlined
def row_max(x, n):
    """The greatest of n >= 1. Compared as integers, where order is total: a NaN of positive sign wins."""
    top = _LEAST
    for i in range(n):
        bits = float_bits(x[i])
        top = max(top, np.int32(bits ^ ((bits >> np.int32(31)) & _UNSIGNED)))
    return bits_float(np.int32(top ^ ((top >> np.int32(31)) & _UNSIGNED)))


@inlined
def exp_row(x, y, n, top):
    """y = exp(x - top); returns the sum."""
    total = np.float32(0)
    for i in range(n):
        e = exp(shifted(x[i], top))
        y[i] = e
        total += e
    return total


@inlined
def exp_in_place(x, n, top):
    """x = exp(x - top); returns the sum. Apart from `exp_row`, whose loop needs two arrays that do not overlap."""
    total = np.float32(0)
    for i in range(n):
        e = exp(shifted(x[i], top))
        x[i] = e
        total += e
    return total


@kernel
def softmax(words, part, parts):
    """Words: x, y, rows, N, whether the logarithm."""
    w = words_of(words)
    n = w[3]
    r0, r1 = share(part, parts, w[2])
    for r in range(r0, r1):
        x, y = floats(w[0] + 4 * r * n, n), floats(w[1] + 4 * r * n, n)
        top = row_max(x, n)
        total = exp_row(x, y, n, top)
        if w[4]:
            less = np.float32(math.log(total))
            for i in range(n):
                y[i] = shifted(shifted(x[i], top), less)
        else:
            scale = np.float32(1) / total
            for i in range(n):
                y[i] *= scale


@kernel
def softmax_vjp(words, part, parts):
    """Words: dy, y, dx, rows, N, whether the logarithm."""
    w = words_of(words)
    n = w[4]
    r0, r1 = share(part, parts, w[3])
    for r in range(r0, r1):
        dy, y, dx = floats(w[0] + 4 * r * n, n), floats(w[1] + 4 * r * n, n), floats(w[2] + 4 * r * n, n)
        total = np.float32(0)
        if w[5]:
            for i in range(n):
                total += dy[i]
            for i in range(n):
                dx[i] = dy[i] - exp(y[i]) * total
        else:
            for i in range(n):
                total += dy[i] * y[i]
            for i in range(n):
                dx[i] = y[i] * (dy[i] - total)


@kernel
def layer_norm(words, part, parts):
    """Words: x, weight, bias, out, mean, rstd, rows, D, eps."""
    w = words_of(words)
    n, eps = w[7], np.float32(word_float(w[8]))
    weight, bias = floats(w[1], n), floats(w[2], n)
    r0, r1 = share(part, parts, w[6])
    means, rstds = floats(w[4] + 4 * r0, r1 - r0), floats(w[5] + 4 * r0, r1 - r0)
    for r in range(r1 - r0):
        x, out = floats(w[0] + 4 * (r0 + r) * n, n), floats(w[3] + 4 * (r0 + r) * n, n)
        total = np.float32(0)
        for i in range(n):
            total += x[i]
        mean = total / np.float32(n)
        total = np.float32(0)
        for i in range(n):
            total += (x[i] - mean) * (x[i] - mean)
        rstd = np.float32(1) / np.float32(math.sqrt(total / np.float32(n) + eps))
        for i in range(n):
            out[i] = (x[i] - mean) * rstd * weight[i] + bias[i]
        means[r], rstds[r] = mean, rstd


@kernel
def layer_norm_vjp(words, part, parts):
    """Words: dy, x, weight, mean, rstd, dx, sums (parts, 2, D) preset to 0, rows, D."""
    w = words_of(words)
    n = w[8]
    weight = floats(w[2], n)
    dweight, dbias = floats(w[6] + 8 * part * n, n), floats(w[6] + 8 * part * n + 4 * n, n)
    r0, r1 = share(part, parts, w[7])
    means, rstds = floats(w[3] + 4 * r0, r1 - r0), floats(w[4] + 4 * r0, r1 - r0)
    for r in range(r1 - r0):
        at = 4 * (r0 + r) * n
        dy, x, dx = floats(w[0] + at, n), floats(w[1] + at, n), floats(w[5] + at, n)
        mean, rstd = means[r], rstds[r]
        plain, along = np.float32(0), np.float32(0)
        for i in range(n):
            g = dy[i] * weight[i]
            plain += g
            along += g * ((x[i] - mean) * rstd)
        for i in range(n):
            dweight[i] += dy[i] * ((x[i] - mean) * rstd)
        for i in range(n):
            dbias[i] += dy[i]
        plain, along = plain / np.float32(n), along / np.float32(n)
        for i in range(n):
            dx[i] = (dy[i] * weight[i] - plain - (x[i] - mean) * rstd * along) * rstd


@kernel
def rms_norm(words, part, parts):
    """Words: x, weight, out, rstd, rows, D, eps."""
    w = words_of(words)
    n, eps = w[5], np.float32(word_float(w[6]))
    weight = floats(w[1], n)
    r0, r1 = share(part, parts, w[4])
    rstds = floats(w[3] + 4 * r0, r1 - r0)
    for r in range(r1 - r0):
        x, out = floats(w[0] + 4 * (r0 + r) * n, n), floats(w[2] + 4 * (r0 + r) * n, n)
        total = np.float32(0)
        for i in range(n):
            total += x[i] * x[i]
        rstd = np.float32(1) / np.float32(math.sqrt(total / np.float32(n) + eps))
        for i in range(n):
            out[i] = x[i] * rstd * weight[i]
        rstds[r] = rstd


@kernel
def rms_norm_vjp(words, part, parts):
    """Words: dy, x, weight, rstd, dx, sums (parts, D) preset to 0, rows, D."""
    w = words_of(words)
    n = w[7]
    weight, dweight = floats(w[2], n), floats(w[5] + 4 * part * n, n)
    r0, r1 = share(part, parts, w[6])
    rstds = floats(w[3] + 4 * r0, r1 - r0)
    for r in range(r1 - r0):
        at = 4 * (r0 + r) * n
        dy, x, dx = floats(w[0] + at, n), floats(w[1] + at, n), floats(w[4] + at, n)
        rstd, along = rstds[r], np.float32(0)
        for i in range(n):
            along += dy[i] * weight[i] * (x[i] * rstd)
        for i in range(n):
            dweight[i] += dy[i] * (x[i] * rstd)
        along = along / np.float32(n)
        for i in range(n):
            dx[i] = (dy[i] * weight[i] - x[i] * rstd * along) * rstd


@kernel
def cross_entropy(words, part, parts):
    """Words: logits, targets, shares (N: w / sum w, 0 where ignored), terms (N float64), gradient or 0, N, V."""
    w = words_of(words)
    n = w[6]
    r0, r1 = share(part, parts, w[5])
    targets, weights = integers(w[1] + 4 * r0, r1 - r0), floats(w[2] + 4 * r0, r1 - r0)
    terms = doubles(w[3] + 8 * r0, r1 - r0)
    for r in range(r1 - r0):
        at = 4 * (r0 + r) * n
        x, weight = floats(w[0] + at, n), weights[r]
        terms[r] = 0
        if weight == 0:
            if w[4]:
                dx = floats(w[4] + at, n)
                for i in range(n):
                    dx[i] = 0
            continue
        top = row_max(x, n)
        if w[4]:
            dx = floats(w[4] + at, n)
            total = exp_row(x, dx, n, top)
            scale = weight / total
            for i in range(n):
                dx[i] *= scale
            dx[targets[r]] -= weight
        else:
            total = np.float32(0)
            for i in range(n):
                total += exp(shifted(x[i], top))
        above = shifted(np.float64(x[targets[r]]), np.float64(top))
        terms[r] = weight * shifted(math.log(total), above)
