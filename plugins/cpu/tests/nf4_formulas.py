"""The NF4 format by its published construction, in NumPy and float64: what the tests of packed weights compare with."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from turret.spi import Packed, ScaleCode

X = npt.NDArray[Any]
Draw = np.random.Generator

UNIT = 2.0**-24
CODES: tuple[ScaleCode, ...] = ("float32", "dynamic", "linear")
# Dettmers et al. 2023, appendix E, with the digits of a float32
LEVELS = np.array(
    [-1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635, -0.18477343022823334,
     -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224,
     0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0], np.float32,
)  # fmt: skip


def made(draw: Draw, *shape: int) -> X:
    return draw.standard_normal(shape).astype(np.float32)


def dynamic_map() -> X:
    """Seven decades; in decade i the middles of 2^i parts of [0.1, 1]; both signs, and 0 and 1. All in float32."""
    positive: list[np.float32] = []
    for i in range(7):
        parts = 2**i
        width = float((np.float32(1) - np.float32(0.1)) / np.float32(parts))
        up = [np.float32(float(np.float32(0.1)) + k * width) for k in range(parts + 1)]
        down = [np.float32(1 - (parts - k) * width) for k in range(parts + 1)]
        edges = [up[k] if 2 * k < parts else down[k] for k in range(parts + 1)]
        positive += [(low + high) / np.float32(2) * np.float32(10.0 ** (i - 6)) for low, high in pairwise(edges)]
    return np.sort(np.array([0.0, 1.0, *positive, *(-x for x in positive)], np.float32))


def linear_levels() -> X:
    """(q - 128) / 127."""
    return (np.arange(-128, 128) / 127).astype(np.float32)


def scale_levels(code: ScaleCode) -> X:
    return linear_levels() if code == "linear" else dynamic_map()


def nearest(units: X, levels: X) -> X:
    middles = ((levels[1:].astype(np.float64) + levels[:-1]) / 2).astype(np.float32)
    return np.searchsorted(middles, units, side="left")


def in_blocks(values: X, block: int) -> tuple[X, X]:
    """Values over the largest magnitude of their block, and those."""
    padded = np.zeros(-(-values.size // block) * block, np.float32)
    padded[: values.size] = values.reshape(-1)
    scales = np.abs(padded.reshape(-1, block)).max(1)
    units = padded.reshape(-1, block) / np.where(scales == 0, np.float32(1), scales)[:, None]
    return units.reshape(-1)[: values.size], scales


def published(weight: X, block: int) -> tuple[X, X]:
    """The construction of codes and scales, step by step."""
    units, scales = in_blocks(weight, block)
    codes = nearest(units, LEVELS)
    codes = np.concatenate([codes, np.full(codes.size % 2, 7)])
    return (codes[0::2] << 4 | codes[1::2]).astype(np.uint8), scales


def decoded(packed: Packed[X]) -> X:
    """The float64 weight, by the definition of the format."""
    count = int(np.prod(packed.shape))
    codes = np.stack([packed.codes >> 4, packed.codes & 15], 1).reshape(-1)[:count]
    scales = packed.scales
    if packed.group_scales is not None and packed.offset is not None:
        groups = np.repeat(packed.group_scales.astype(np.float64), 256)[: scales.size]
        scales = groups * scale_levels(packed.scale_code)[scales] + float(packed.offset)
        scales = np.maximum(scales, 0) if packed.scale_code == "linear" else scales
    blocks = np.repeat(scales.astype(np.float64), packed.block)[:count]
    return np.asarray((LEVELS[codes].astype(np.float64) * blocks).reshape(packed.shape))


def close(got: X, a: X, b: X, bias: X | float = 0.0) -> None:
    """got is a @ b + bias up to the roundings of a float32 sum of so many terms."""
    a, b, bias = a.astype(np.float64), b.astype(np.float64), np.asarray(bias, np.float64)
    allowed = (5 * np.sqrt(a.shape[-1]) + 8) * UNIT * (np.abs(a) @ np.abs(b) + np.abs(bias))
    want = a @ b + bias
    assert got.shape == want.shape
    assert (np.abs(got - want) <= allowed + 1e-37).all(), np.max(np.abs(got - want) / (allowed + 1e-37))
