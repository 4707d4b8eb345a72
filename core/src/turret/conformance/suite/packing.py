"""What the suite of packed weights asks of `pack`: its fields, exact codes and scales, and coded scales."""

from __future__ import annotations

from typing import Any

import numpy as np

from turret.spi import NF4_LEVELS, DType, Host, Packed, ScaleCode, Shape

from ..bench import Bench
from ..given import Draw, Given, View
from ..oracle import nf4 as oracle
from ..tolerances import FORMATS, growth

UNIT = FORMATS["float32"].unit
MIDPOINTS = oracle.midpoints(np.array(NF4_LEVELS, np.float32)).astype(np.float64)
CLEARANCE = 1e-5
"""How far drawn weights keep from the middle of two levels, in units of their scale: x / s and x * (1 / s) agree."""


def weights(
    draw: Draw, *shape: int, block: int, dtype: DType = "float32", view: View = "whole", scale: float = 1.0
) -> Given:
    """Normal weights whose codes do not hang on the last bit of a division."""
    return clear(draw.normal(*shape, dtype=dtype, view=view, scale=scale), block)


def clear(given: Given, block: int) -> Given:
    """The same with a zero for every value that is too near to the middle of two levels."""
    flat = given.host.astype(np.float32).reshape(-1)
    scales = oracle.pack(flat, block=block, scale_code="float32")[1].astype(np.float64)
    units = flat / np.repeat(np.where(scales == 0, 1.0, scales), block)[: flat.size]
    near = np.abs(units[:, None] - MIDPOINTS).min(axis=1) < CLEARANCE
    given.host[near.reshape(given.shape)] = 0
    return given


def packed(draw: Draw, shape: Shape, block: int, *, scale_code: ScaleCode) -> Packed[Given]:
    """A packed weight as the oracle makes it."""
    codes, scales, group_scales, offset = oracle.pack(
        weights(draw, *shape, block=block).host, block=block, scale_code=scale_code
    )
    return Packed(
        draw.of(codes, "uint8"),
        draw.of(scales, "float32" if scale_code == "float32" else "uint8"),
        None if group_scales is None else draw.of(group_scales),
        None if offset is None else draw.of(offset),
        shape,
        block,
        scale_code,
    )


def check(bench: Bench, got: Packed[Any], weight: Given, *, block: int, scale_code: ScaleCode) -> None:
    """Every field of what `pack` made of this weight."""
    bench.require(isinstance(got, Packed), f"got {type(got).__name__}, wanted Packed")
    bench.require(
        tuple(got.shape) == weight.shape and got.block == block,
        f"got shape {got.shape} and block {got.block}, wanted {weight.shape} and {block}",
    )
    bench.require(got.scale_code == scale_code, f"got scale code {got.scale_code!r}, wanted {scale_code!r}")
    values = weight.host.astype(np.float32)
    codes, scales, _, _ = oracle.pack(values, block=block, scale_code="float32")
    mine = _field(bench, "codes", got.codes, "uint8", codes.shape)
    if values.size % 2:  # the nibble after the last value belongs to nobody
        mine[-1], codes[-1] = mine[-1] & 0xF0, codes[-1] & 0xF0
    bench.same("codes", mine, codes)
    if scale_code != "float32":
        _check_scales(bench, got, scales)
        return
    bench.require(got.group_scales is None and got.offset is None, "plain scales come without group_scales and offset")
    # adding zero: the largest of 0 and -0 may be either
    bench.same("scales", _field(bench, "scales", got.scales, "float32", scales.shape) + np.float32(0), scales)


def check_unpacked(bench: Bench, packed: Packed[Any]) -> None:
    """What `unpack` makes of a weight with coded scales, whose parts are right."""
    codes, scales = bench.get(packed.codes), bench.get(packed.scales)
    groups, offset = (bench.get(part).astype(np.float64) for part in (packed.group_scales, packed.offset))
    known: Packed[Any] = Packed(codes, scales, groups, offset, packed.shape, packed.block, packed.scale_code)
    bench.context = f"quantized_linear.unpack of what pack gave, {packed.scale_code} scales"
    got = _field(bench, "weight", bench.tools.quantized_linear.unpack(packed), "float32", packed.shape)
    greatest = np.repeat(np.repeat(groups, oracle.GROUP)[: scales.size] + np.abs(offset), packed.block)
    allowed = 4 * UNIT * greatest[: got.size].reshape(got.shape) + FORMATS["float32"].normal
    bench.within("weight", got, oracle.unpack(known), allowed)


def _check_scales(bench: Bench, got: Packed[Any], scales: Host) -> None:
    """The offset is a mean, whose last bits depend on the order of addition; the rest is judged from that offset."""
    blocks, wide = scales.size, scales.astype(np.float64)
    bench.require(got.group_scales is not None and got.offset is not None, "group_scales and offset are missing")
    offset = _field(bench, "offset", got.offset, "float32", ()).astype(np.float64)
    mean = wide.mean()
    bench.within("offset", offset, np.asarray(mean), (growth(blocks) + 4) * UNIT * mean)
    differences = wide - float(offset)
    slack = 4 * UNIT * (np.abs(wide).max() + abs(float(offset)))
    groups = -(-blocks // oracle.GROUP)
    padded = np.pad(np.abs(differences), (0, groups * oracle.GROUP - blocks)).reshape(groups, oracle.GROUP)
    group_scales = _field(bench, "group_scales", got.group_scales, "float32", (groups,)).astype(np.float64)
    bench.within("group_scales", group_scales, padded.max(axis=1), slack)
    codes = _field(bench, "scales", got.scales, "uint8", (blocks,))
    levels = oracle.SCALE_LEVELS[got.scale_code].astype(np.float64)
    spread = np.repeat(group_scales, oracle.GROUP)[:blocks]
    # no level may serve a scale better than the one chosen, but for the rounding of the difference and the division
    missed = np.abs(differences - levels[codes] * spread)
    least = np.abs(differences[:, None] - levels * spread[:, None]).min(axis=1)
    bench.require(
        (missed <= least + slack).all(),
        f"scale {int(np.argmax(missed - least))} of {blocks} is not coded by the nearest of the 256 levels",
    )


def _field(bench: Bench, name: str, array: Any, dtype: DType, shape: Shape) -> Host:
    host, found = bench.get(array), bench.tools.storage.dtype_of(array)
    bench.require(
        found == dtype and host.shape == shape, f"{name}: got {found} {host.shape}, wanted {dtype} {tuple(shape)}"
    )
    return host
