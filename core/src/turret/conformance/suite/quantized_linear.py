"""Cases of the slot of 4-bit NormalFloat weights."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from turret.spi import HALVES, NF4_LEVELS, DType, Packed, ScaleCode, Shape

from ..bench import Bench
from ..case import Body, Case, call_case
from ..given import Call, Draw, Given, Slope, View
from ..oracle import nf4 as oracle
from ..tolerances import FORMATS, growth
from ..tracked import Tracked
from .naming import SHORT, sizes
from .packing import MIDPOINTS, check, check_unpacked, clear, packed, weights

PACKED: tuple[tuple[Shape, int], ...] = (
    ((1,), 32),
    ((33,), 32),  # an odd count and a tail block of one value
    ((64,), 64),
    ((5, 7), 64),
    ((31, 33), 32),
    ((3, 5, 7), 128),
    ((10,), 4096),  # one block, wider than the weight
    ((64, 65), 4096),
    ((4, 256), 256),
    ((3, 512), 512),
    ((2000,), 1024),
    ((65, 63), 2048),
    ((96, 100), 32),  # 300 blocks: two groups of scales
)
APPLIED: tuple[tuple[Shape, Shape, int], ...] = (
    ((1, 1), (1, 1), 32),
    ((65,), (3, 65), 64),
    ((5, 7), (3, 7), 32),  # a block spans rows
    ((2, 3, 64), (33, 64), 64),
    ((1, 130), (64, 130), 128),
    ((9, 96), (100, 96), 32),
    ((0, 8), (4, 8), 32),
    ((17, 5), (1, 5), 4096),
)
# sizes of the draws: means of 2^15 weights; deviations of such a mean, times the root of the number of weights
DRAWN = 1 << 15
DEVIATIONS = {32: (0.066, 0.31), 64: (0.078, 0.36), 128: (0.092, 0.41), 256: (0.11, 0.41), 4096: (0.37, 1.05)}
NAMES: dict[ScaleCode, str] = {"float32": "plain", "dynamic": "dynamic", "linear": "linear"}
TWO: tuple[ScaleCode, ...] = ("float32", "dynamic")
"""The scale codes that meet every size; "linear" differs from "dynamic" in a table and a clamp, and meets some."""

LINEAR_PACKED: tuple[tuple[Shape, int], ...] = (
    ((31, 33), 32),
    ((5, 7), 64),
    ((3, 5, 7), 128),
    ((4, 256), 256),
    ((3, 512), 512),
    ((2000,), 1024),
    ((65, 63), 2048),
    ((64, 65), 4096),
    ((96, 100), 32),
)
LINEAR_APPLIED: tuple[tuple[Shape, Shape, int], ...] = (
    ((5, 33), (33, 33), 32),  # square: its gradient can be mistaken for its product
    ((9, 96), (100, 96), 32),
    ((65, 128), (33, 128), 64),  # more rows than any kernel takes one by one
)
GOLDEN = bytes.fromhex("0123456789abcdeffedcba9876543210")


def cases() -> Iterator[Case]:
    """Golden bytes, packing exactly, unpacking, products, and the published losses."""
    for scale in (1.0, 2.0, 0.75, 2.0**-20):
        yield Case(id=f"quantized_linear/golden/pack-scale-{scale:.3g}", body=_golden_pack(scale), kind="forward")
    yield Case(id="quantized_linear/golden/unpack", body=_golden_unpack, kind="forward")
    yield Case(id="quantized_linear/golden/unpack-dynamic", body=_golden_dynamic, kind="forward")
    yield Case(id="quantized_linear/golden/all-bytes", body=_all_bytes, kind="forward")
    for code in TWO:
        for shape, block in PACKED:
            name = sizes(shape) + f"-b{block}-{NAMES[code]}"
            yield _pack(f"pack/{name}", _normal(shape, block), block, code=code)
            yield _unpack(f"unpack/{name}", shape, block, code=code)
        for x, weight, block in APPLIED:
            for biased in (True, False):
                yield _linear(x, weight, block, code=code, biased=biased)
            yield _vjp(x, weight, block, code=code)
    for dtype in (*sorted(HALVES), "float64"):
        yield _pack(f"pack/9x65-b32-{SHORT[dtype]}", _normal((9, 65), 32, dtype), 32, code="float32")
        for code in TWO:
            yield _linear((5, 66), (9, 66), 64, code=code, biased=True, dtype=dtype)
            yield _vjp((5, 66), (9, 66), 64, code=code, dtype=dtype)
    for view in ("transposed", "strided", "offset"):
        yield _pack(f"pack/9x66-b32-{view}", _normal((9, 66), 32, "float32", view), 32, code="float32")
        yield _linear((5, 66), (9, 66), 64, code="float32", biased=True, view=view)
        yield _vjp((5, 66), (9, 66), 64, code="float32", view=view)
    for name, (draw, block) in _special_weights().items():
        for code in TWO:
            yield _pack(f"pack/{name}-{NAMES[code]}", draw, block, code=code)
    for block in (32, 64, 4096):
        yield Case(id=f"quantized_linear/again/b{block}", body=_again(block), kind="forward")
    for block in oracle.PUBLISHED_ERRORS:
        for code in TWO:
            yield Case(id=f"quantized_linear/loss/b{block}-{NAMES[code]}", body=_loss(block, code), kind="forward")
    yield from _linear_scales()


def _linear_scales() -> Iterator[Case]:
    """What is asked of scales coded on the even levels."""
    yield Case(id="quantized_linear/golden/unpack-linear", body=_golden_linear, kind="forward")
    yield Case(id="quantized_linear/golden/scales-below-zero", body=_below_zero, kind="forward")
    for shape, block in LINEAR_PACKED:
        name = f"pack-unpack/{sizes(shape)}-b{block}-linear"
        yield _pack(name, _normal(shape, block), block, code="linear", unpacked=True)
    for x, weight, block in LINEAR_APPLIED:
        yield _linear(x, weight, block, code="linear", biased=True)
        yield _vjp(x, weight, block, code="linear")
    yield _linear((5, 66), (9, 66), 64, code="linear", biased=True, dtype="float16")
    yield _vjp((5, 66), (9, 66), 64, code="linear", dtype="float16")
    yield _pack("pack/9x66-b32-strided-linear", _normal((9, 66), 32, "float32", "strided"), 32, code="linear")
    for name, (draw, block) in _special_weights().items():
        if name in ("zeros", "zero-blocks-among", "scales-1e-30-to-1e30", "all-equal"):
            yield _pack(f"pack-unpack/{name}-linear", draw, block, code="linear", unpacked=True)
    for block in oracle.PUBLISHED_ERRORS:
        yield Case(id=f"quantized_linear/loss/b{block}-linear", body=_loss(block, "linear"), kind="forward")


def _normal(shape: Shape, block: int, dtype: DType = "float32", view: View = "whole") -> Callable[[Draw], Given]:
    return lambda draw: weights(draw, *shape, block=block, dtype=dtype, view=view)


def _pack(name: str, draw: Callable[[Draw], Given], block: int, *, code: ScaleCode, unpacked: bool = False) -> Case:
    def body(bench: Bench) -> None:
        weight = draw(bench.draw)
        slot = bench.tools.quantized_linear
        bench.context = f"quantized_linear.pack({weight.dtype}{list(weight.shape)}, block={block}, scales={code})"
        got = slot.pack(bench.put(weight), block=block, scales=code)
        check(bench, got, weight, block=block, scale_code=code)
        if unpacked:
            check_unpacked(bench, got)

    return Case(id=f"quantized_linear/{name}", body=body, kind="forward")


def _special_weights() -> dict[str, tuple[Callable[[Draw], Given], int]]:
    def zeros_among(draw: Draw) -> Given:
        given = weights(draw, 5, 32, block=32)
        given.host[1], given.host[3] = 0.0, -0.0
        return given

    def scaled(draw: Draw) -> Given:
        given = weights(draw, 9, 64, block=64)
        given.host[...] *= 10.0 ** np.linspace(-30, 30, 9)[:, None].astype(np.float32)
        return clear(given, 64)

    def lone(draw: Draw) -> Given:
        return draw.of(np.where(np.arange(96) % 32 == 31, -7.0, 0.0))

    return {
        "zeros": (lambda draw: draw.of(np.zeros((3, 50))), 32),
        "zero-blocks-among": (zeros_among, 32),
        "scales-1e-30-to-1e30": (scaled, 64),
        "negative-largest-last": (lone, 32),
        "all-equal": (lambda draw: draw.of(np.full((7, 32), 0.3)), 32),
        "levels-at-midpoints": (_around_midpoints, 64),
        "ties": (_ties, 32),
    }


def _ties(draw: Draw) -> Given:
    """Middles of two levels that float32 holds exactly, at scales that divide exactly."""
    levels = np.array(NF4_LEVELS, np.float32).astype(np.float64)
    middles = (levels[1:] + levels[:-1]) / 2
    exact = middles[middles.astype(np.float32) == middles]
    row = np.zeros(32)
    row[: exact.size], row[-1] = exact, 1.0
    return draw.of(np.stack([row, 4 * row[::-1], row / 1024]))


def _around_midpoints(draw: Draw) -> Given:
    """Four units in the last place below and above each middle, where nearness is not in doubt."""
    middles = MIDPOINTS.astype(np.float32)
    away = 4 * np.spacing(np.abs(middles))
    row = np.zeros(64, np.float32)
    row[:30], row[40] = np.concatenate([middles - away, middles + away]), -1.0
    return draw.of(np.stack([row, 2 * row]))


def _golden_pack(scale: float) -> Body:
    """The sixteen levels up and down, times a scale: bytes known by hand, the first value in the high nibble."""

    def body(bench: Bench) -> None:
        up = np.array(NF4_LEVELS, np.float32)
        weight = bench.put(Given(np.concatenate([up, up[::-1]]) * np.float32(scale), "float32"))
        bench.context = f"quantized_linear.pack of the levels times {scale}"
        got = bench.tools.quantized_linear.pack(weight, block=32, scales="float32")
        bench.exact("codes", got.codes, np.frombuffer(GOLDEN, np.uint8), "uint8")
        bench.exact("scales", got.scales, np.array([scale], np.float32), "float32")

    return body


def _golden_unpack(bench: Bench) -> None:
    """Two blocks; the second one is cut off after three values, and the last nibble belongs to nobody."""
    codes = np.frombuffer(GOLDEN + bytes.fromhex("f07f"), np.uint8)
    scales = np.array([2.0, 0.5], np.float32)
    placed = (bench.put(Given(codes.copy(), "uint8")), bench.put(Given(scales, "float32")))
    levels = np.array(NF4_LEVELS, np.float32)
    want = np.concatenate([2 * levels, 2 * levels[::-1], [0.5, -0.5, 0.0]]).astype(np.float32)
    bench.context = "quantized_linear.unpack of golden bytes"
    got = bench.tools.quantized_linear.unpack(Packed(*placed, None, None, (5, 7), 32, "float32"))
    bench.exact("weight", got, want.reshape(5, 7), "float32")


def _golden_dynamic(bench: Bench) -> None:
    """Scales of offset + group scale * level: the least, zero and greatest levels are -0.99296874, 0 and 1."""
    _coded(bench, "dynamic", codes=(0, 127, 255), group=0.5, offset=2.0, scales=(2 - 0.99296874 / 2, 2, 2.5))


def _golden_linear(bench: Bench) -> None:
    """The levels of 1, 128, 255 and 192 are -1, 0, 1 and 64/127."""
    scales = (1.5, 2, 2.5, 2 + 32 / 127)
    _coded(bench, "linear", codes=(1, 128, 255, 192), group=0.5, offset=2.0, scales=scales)


def _coded(
    bench: Bench, code: ScaleCode, *, codes: Sequence[int], group: float, offset: float, scales: Sequence[float]
) -> Packed[Any]:
    """Blocks of 1 and -1 in turns, so that unpacking shows what their scales are."""
    hosts = (
        Given(np.full(16 * len(codes), 0xF0, np.uint8), "uint8"),
        Given(np.array(codes, np.uint8), "uint8"),
        Given(np.array([group], np.float32), "float32"),
        Given(np.array(offset, np.float32), "float32"),
    )
    placed = tuple(bench.put(x) for x in hosts)
    given: Packed[Any] = Packed(placed[0], placed[1], placed[2], placed[3], (len(codes), 32), 32, code)
    bench.context = f"quantized_linear.unpack of golden bytes, {code} scales"
    want = np.array(scales)[:, None] * np.tile([1.0, -1.0], 16)
    got = bench.get(bench.tools.quantized_linear.unpack(given))
    bench.within("weight", got, want, 1e-7 + 4 * FORMATS["float32"].unit * np.abs(want))
    return given


def _below_zero(bench: Bench) -> None:
    """Offset 1/2 and levels of -1 or less: the scales are 0, in products of few and of many rows as well."""
    scales, slot = np.array([0.0, 0.5, 0.0, 1.5]), bench.tools.quantized_linear
    given = _coded(bench, "linear", codes=(1, 128, 0, 255), group=1.0, offset=0.5, scales=scales.tolist())
    signs, unit = np.tile([1.0, -1.0], 16), FORMATS["float32"].unit
    for rows in (1, 65):
        x = bench.draw.uniform(rows, 32, low=1, high=2)
        bench.context = f"quantized_linear.linear of {rows} rows, linear scales below zero"
        got = bench.get(slot.linear(bench.put(x), given, None))
        sums = x.exact.sum(axis=1, keepdims=True)
        bench.within("y", got, (x.exact @ signs)[:, None] * scales, (growth(32) + 4) * unit * sums * scales)
    dy = bench.draw.uniform(2, 4, low=1, high=2)
    bench.context = "quantized_linear.linear_vjp_input, linear scales below zero"
    want = (dy.exact @ scales)[:, None] * signs
    got = bench.get(slot.linear_vjp_input(bench.put(dy), given))
    bench.within("dx", got, want, (growth(4) + 4) * unit * np.abs(want))


def _all_bytes(bench: Bench) -> None:
    codes = Given(np.arange(256, dtype=np.uint8), "uint8")
    placed = bench.put(codes), bench.put(Given(np.ones(8, np.float32), "float32"))
    bench.context = "quantized_linear.unpack of all bytes"
    got = bench.tools.quantized_linear.unpack(Packed(*placed, None, None, (2, 256), 64, "float32"))
    levels = np.array(NF4_LEVELS, np.float32)
    want = np.stack([np.repeat(levels, 16), np.tile(levels, 16)], axis=1)
    bench.exact("weight", got, want.reshape(2, 256), "float32")


def _unpack(name: str, shape: Shape, block: int, *, code: ScaleCode) -> Case:
    def build(draw: Draw) -> Call:
        return Call("quantized_linear", "unpack", (packed(draw, shape, block, scale_code=code),))

    return call_case(f"quantized_linear/{name}", build, oracle.unpack, returns=("float32",))


def _variant(x: Shape, weight: Shape, block: int, code: ScaleCode, dtype: DType, view: View) -> str:
    parts = [sizes(x), f"O{weight[0]}", f"b{block}", NAMES[code]]
    return "-".join([*parts, *([] if view == "whole" else [view]), SHORT[dtype]])


def _linear(
    x: Shape,
    weight: Shape,
    block: int,
    *,
    code: ScaleCode,
    biased: bool,
    dtype: DType = "float32",
    view: View = "whole",
) -> Case:
    def build(draw: Draw) -> Call:
        bias = draw.normal(weight[0], dtype=dtype) if biased else None
        inputs = draw.normal(*x, dtype=dtype, view=view)
        return Call("quantized_linear", "linear", (inputs, packed(draw, weight, block, scale_code=code), bias))

    def truth(inputs: Any, given: Packed[Any], bias: Any) -> Any:
        return oracle.linear(inputs, _in_dtype(given, dtype), bias)

    check_name = "linear-bias" if biased else "linear"
    name = f"quantized_linear/{check_name}/{_variant(x, weight, block, code, dtype, view)}"
    return call_case(name, build, truth, returns=(dtype,))


def _vjp(
    x: Shape, weight: Shape, block: int, *, code: ScaleCode, dtype: DType = "float32", view: View = "whole"
) -> Case:
    def build(draw: Draw) -> Call:
        dy = draw.normal(*x[:-1], weight[0], dtype=dtype, view=view)
        given = packed(draw, weight, block, scale_code=code)
        exact = dataclasses.replace(given, **{name: part.exact for name, part in _parts(given).items()})
        point = draw.rng.standard_normal(x)
        slope = Slope(lambda value: oracle.linear(value, exact, None), (point,), dy.exact)
        return Call(
            "quantized_linear", "linear_vjp_input", (dy, given), slope=None if dtype in HALVES or 0 in x else slope
        )

    def truth(dy: Any, given: Packed[Any]) -> Any:
        return oracle.linear_vjp_input(dy, _in_dtype(given, dtype))

    name = f"quantized_linear/linear-vjp/{_variant(x, weight, block, code, dtype, view)}"
    return call_case(name, build, truth, kind="vjp", returns=(dtype,))


def _parts(given: Packed[Any]) -> dict[str, Any]:
    found = {name: getattr(given, name) for name in ("codes", "scales", "group_scales", "offset")}
    return {name: part for name, part in found.items() if part is not None}


def _in_dtype(given: Packed[Any], dtype: DType) -> Packed[Any]:
    """The unpacked weight may be rounded to the dtype of x before the product, as may its scales to float32."""
    if dtype not in HALVES:
        return given
    shaky: dict[str, Any] = {
        name: part.rounded(FORMATS[dtype].unit) for name, part in _parts(given).items() if isinstance(part, Tracked)
    }
    return dataclasses.replace(given, **shaky)


def _again(block: int) -> Body:
    """Packing what was unpacked gives the same bytes and scales."""

    def body(bench: Bench) -> None:
        slot = bench.tools.quantized_linear
        weight = bench.draw.normal(65, 66)
        bench.context = f"quantized_linear.pack, unpack, pack with block {block}"
        once = slot.pack(bench.put(weight), block=block, scales="float32")
        codes, scales = bench.get(once.codes), bench.get(once.scales)
        again = slot.pack(slot.unpack(once), block=block, scales="float32")
        bench.exact("codes", again.codes, codes, "uint8")
        bench.exact("scales", again.scales, scales, "float32")

    return body


def _loss(block: int, code: ScaleCode) -> Body:
    """Over normal weights the mean loss is the published one, within seven deviations of a mean of so many."""
    limits = oracle.PUBLISHED_ERRORS[block] if code == "float32" else (oracle.CODED_ERRORS[code][block],)

    def body(bench: Bench) -> None:
        slot = bench.tools.quantized_linear
        weight = bench.draw.normal(DRAWN // 256, 256)
        bench.context = f"quantized_linear.unpack(pack) with block {block}, scales={code}"
        back = bench.get(slot.unpack(slot.pack(bench.put(weight), block=block, scales=code))).astype(np.float64)
        exact = weight.exact
        lost = np.abs(back - exact)
        means = np.array([lost.mean(), (lost / np.abs(exact)).mean()])[: len(limits)]
        deviations = np.array(DEVIATIONS[block])[: len(limits)] / math.sqrt(DRAWN)
        bench.within("mean absolute and relative loss", means, np.array(limits), 7 * deviations + 5e-4 * means)

    return body
