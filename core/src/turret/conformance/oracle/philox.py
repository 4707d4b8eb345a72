"""Truth of the random words: Philox4x64-10 in whole numbers. Source: Salmon et al. 2011, section 3.3 and table 2."""

from __future__ import annotations

import math

import numpy as np

from turret.spi import Host, Shape

MULTIPLIERS = (0xD2E7470EE14C6C93, 0xCA5A826395121157)
WEYL = (0x9E3779B97F4A7C15, 0xBB67AE8584CAA73B)
ROUNDS = 10
MASK = (1 << 64) - 1


def block(counter: tuple[int, int, int, int], key: tuple[int, int]) -> tuple[int, int, int, int]:
    """The four words of 64 bits of one counter."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(ROUNDS):
        first, second = MULTIPLIERS[0] * c0, MULTIPLIERS[1] * c2
        c0, c1, c2, c3 = (second >> 64) ^ c1 ^ k0, second & MASK, (first >> 64) ^ c3 ^ k1, first & MASK
        k0, k1 = (k0 + WEYL[0]) & MASK, (k1 + WEYL[1]) & MASK
    return c0, c1, c2, c3


def bits(shape: Shape, *, key: int, counter: int) -> Host:
    """int32: block j of a stream is that of (j + 1, 0, counter, 0) and (key, 0); each word gives its low half first."""
    count = math.prod(shape)
    words = [word for j in range(-(-count // 8)) for word in block((j + 1, 0, counter, 0), (key, 0))]
    halves = np.array(words, "<u8").view("<u4")[:count]
    return halves.view(np.int32).reshape(shape)


def uniform(shape: Shape, *, key: int, counter: int) -> Host:
    """float32: the upper 24 bits of a word over 2^24, exactly."""
    return ((bits(shape, key=key, counter=counter).view(np.uint32) >> 8) * 2.0**-24).astype(np.float32)
