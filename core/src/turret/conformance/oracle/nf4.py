"""Truth of the packed NF4 format: codes and scales bit for bit, products in float64, published losses."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np

from turret.spi import NF4_LEVELS, Host, Packed, ScaleCode

from .arrays import Array

GROUP = 256  # block scales that share one scale of their own
ZERO_CODE = NF4_LEVELS.index(0.0)

PUBLISHED_ERRORS: dict[int, tuple[float, float]] = {
    32: (0.067746, 0.189726),
    64: (0.072798, 0.203339),
    128: (0.076831, 0.215237),
    256: (0.080337, 0.226105),
    4096: (0.092547, 0.262473),
}
"""Per block size, the mean of |error| and of |error / weight| over weights from N(0, 1), as bitsandbytes states it."""

CODED_ERRORS: dict[ScaleCode, dict[int, float]] = {
    "dynamic": {32: 0.067867, 64: 0.072838, 128: 0.076874, 256: 0.080372, 4096: 0.092451},
    "linear": {32: 0.067827, 64: 0.072817, 128: 0.076862, 256: 0.080364, 4096: 0.092453},
}
"""Per block size, the mean of |error| with coded scales, measured over 2^22 weights from N(0, 1)."""


def dynamic_map() -> Host:
    """The levels of a "dynamic" scale, float32, ascending; 0 stands at index 127.

    Zero, one, and for every exponent i of 0..6 the centres of 2^i equal parts of [0.1, 1], scaled by 10^(i - 6), with
    both signs. In float32, as the tables in published checkpoints are: the ends of parts are rounded, counted from the
    nearer end of the interval, and so are their centres. Source: Dettmers 2016, section 2.2.
    """
    positive: list[float] = []
    for exponent in range(7):
        parts = 2**exponent
        width = float((np.float32(1) - np.float32(0.1)) / np.float32(parts))
        ends = [
            np.float32(float(np.float32(0.1)) + k * width if 2 * k < parts else 1 - (parts - k) * width)
            for k in range(parts + 1)
        ]
        scale = np.float32(10.0 ** (exponent - 6))
        positive += [float((low + high) / np.float32(2) * scale) for low, high in pairwise(ends)]
    return np.array(sorted([0.0, 1.0, *positive, *(-value for value in positive)]), np.float32)


SCALE_LEVELS: dict[ScaleCode, Host] = {
    "dynamic": dynamic_map(),
    "linear": np.array([(q - 128) / 127 for q in range(256)], np.float32),
}
"""The 256 levels of a coded scale, float32, ascending."""


def midpoints(levels: Host) -> Host:
    """The float32 values halfway between neighbouring levels: at or below one, the lower level is taken."""
    return ((levels[:-1].astype(np.float64) + levels[1:]) / 2).astype(np.float32)


def pack(weight: Host, /, *, block: int, scale_code: ScaleCode) -> tuple[Host, Host, Host | None, Host | None]:
    """codes, scales, group_scales and offset of `Packed`; the last two are None where scales are plain float32.

    The nibble after an odd last value holds the code of 0. Codes and plain scales are exact. The offset is a mean,
    whose last bit depends on the order of addition: `pack_scales` gives what follows from the offset at hand.
    Source: Dettmers et al. 2023 (QLoRA), section 3.
    """
    units, scales = _units(weight.astype(np.float32).reshape(-1), block)
    nibbles = np.searchsorted(midpoints(np.array(NF4_LEVELS, np.float32)), units[: weight.size], side="left")
    nibbles = np.concatenate([nibbles, np.full(weight.size % 2, ZERO_CODE)])
    codes = (nibbles[0::2] * 16 + nibbles[1::2]).astype(np.uint8)
    if scale_code == "float32":
        return codes, scales, None, None
    offset = np.array(scales.mean(dtype=np.float64), np.float32)
    return codes, *pack_scales(scales, offset, scale_code), offset


def pack_scales(scales: Host, offset: Host, scale_code: ScaleCode, /) -> tuple[Host, Host]:
    """uint8 codes of the float32 scales less `offset`, and their float32 group scales."""
    units, group_scales = _units((scales - offset).astype(np.float32), GROUP)
    codes = np.searchsorted(midpoints(SCALE_LEVELS[scale_code]), units[: scales.size], side="left")
    return codes.astype(np.uint8), group_scales


def unpack(packed: Packed[Array], /) -> Array:
    """The float64 weight of `packed.shape`; its scales, group_scales and offset may be tracked, its codes may not."""
    nibbles = np.stack([packed.codes >> 4, packed.codes & 15], axis=1).reshape(-1)
    count = math.prod(packed.shape)
    values = np.array(NF4_LEVELS)[nibbles[:count]]
    scales = packed.scales
    if packed.group_scales is not None and packed.offset is not None:
        blocks = scales.shape[0]
        levels = SCALE_LEVELS[packed.scale_code].astype(np.float64)[scales]
        scales = np.repeat(packed.group_scales, GROUP)[:blocks] * levels + packed.offset
        if packed.scale_code == "linear":
            scales = np.maximum(scales, 0)
    return (np.repeat(scales, packed.block)[:count] * values).reshape(packed.shape)


def linear(x: Array, packed: Packed[Array], bias: Array | None, /) -> Array:
    """x: (..., I) @ unpack(packed)^T + bias."""
    product = x @ unpack(packed).T
    return product if bias is None else product + bias


def linear_vjp_input(dy: Array, packed: Packed[Array], /) -> Array:
    """dy: (..., O); returns (..., I)."""
    return dy @ unpack(packed)


def _units(values: Host, block: int) -> tuple[Host, Host]:
    """Float32 (n,) over their block's scale, flat with a zero-filled last block, and the scale of each block."""
    blocks = -(-values.size // block)
    tiles = np.zeros((blocks, block), np.float32)
    tiles.reshape(-1)[: values.size] = values
    scales = np.abs(tiles).max(axis=1)
    divisors = np.where(scales == 0, np.float32(1), scales)
    return (tiles / divisors[:, None]).reshape(-1), scales
