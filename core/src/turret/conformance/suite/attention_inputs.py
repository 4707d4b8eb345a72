"""Sizes, values, memory layouts and comparisons that the suites of attention share.

Letters: B batch, T query length, S key length, H query heads, K key-value heads, d head size.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from turret.spi import HALVES, DType

from ..bench import Bench
from ..given import Draw, Given, Slope, View
from ..oracle import attention as oracle
from .naming import SHORT

UNSEEN = 1e30
"""What keys and values that nobody sees may hold. Not NaN: a weight of zero times NaN is NaN."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """The sizes of one call and the position of its first query."""

    batch: int
    queries: int
    keys: int
    heads: int
    kv_heads: int
    size: int
    offset: int

    @property
    def scale(self) -> float:
        return 1 / math.sqrt(self.size)

    def __str__(self) -> str:
        names = ("B", "T", "S", "H", "K", "d", "o")
        values = (self.batch, self.queries, self.keys, self.heads, self.kv_heads, self.size, self.offset)
        return "-".join(f"{name}{value}" for name, value in zip(names, values, strict=True))


ALL = (
    Sizes(1, 1, 1, 1, 1, 1, 0),
    Sizes(2, 1, 65, 4, 2, 8, 64),  # decode
    Sizes(1, 1, 7, 2, 2, 31, 3),
    Sizes(1, 2, 257, 2, 2, 16, 255),
    Sizes(2, 63, 63, 8, 2, 8, 0),
    Sizes(1, 64, 64, 2, 1, 64, 0),
    Sizes(1, 65, 65, 2, 2, 31, 0),
    Sizes(1, 127, 127, 2, 1, 8, 0),
    Sizes(1, 129, 130, 2, 2, 8, 1),
    Sizes(1, 130, 129, 4, 1, 4, 0),  # more queries than keys
    Sizes(2, 33, 130, 2, 1, 16, 97),
    Sizes(2, 5, 9, 4, 1, 8, 4),
    Sizes(2, 5, 9, 6, 2, 8, 4),  # groups of three heads
    Sizes(1, 9, 9, 10, 2, 4, 0),  # and of five
    Sizes(1, 5, 9, 2, 2, 65, 0),  # keys 5..8 are seen by nobody
    Sizes(3, 17, 20, 8, 2, 1, 3),
    Sizes(2, 3, 1, 2, 1, 8, 0),
    Sizes(1, 4, 6, 2, 1, 8, 100),  # every key is seen
    Sizes(2, 0, 3, 4, 2, 8, 0),
    Sizes(0, 3, 3, 4, 2, 8, 0),
)
NARROW = (Sizes(2, 9, 12, 4, 2, 16, 3), Sizes(1, 65, 65, 2, 1, 32, 0))
VIEWED = Sizes(2, 6, 9, 4, 2, 8, 3)
VIEWS: tuple[View, ...] = ("transposed", "strided", "offset")
Inputs = Callable[[Draw], tuple[Given, Given, Given]]
"""Draws q (B, T, H, d), k and v (B, S, K, d)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """One thing to ask of both forms of attention: sizes, values, scale, dtype."""

    check: str
    variant: str
    sizes: Sizes
    inputs: Inputs
    scale: float
    dtype: DType = "float32"


def questions() -> list[Question]:
    """Plain sizes, narrow dtypes, views, and values that only careful code survives."""
    asked = [plain("sizes", sizes) for sizes in ALL]
    asked += [plain("halves", sizes, dtype) for sizes in NARROW for dtype in sorted(HALVES)]
    asked += [plain("views", VIEWED, "float32", view) for view in VIEWS]
    return asked + _extremes()


def plain(check: str, sizes: Sizes, dtype: DType = "float32", view: View = "whole") -> Question:
    """Standard normal values and the usual scale."""
    tail = "" if view == "whole" else f"-{view}"
    return Question(
        check=check,
        variant=f"{sizes}{tail}-{SHORT[dtype]}",
        sizes=sizes,
        inputs=lambda draw: normal(draw, sizes, dtype, view),
        scale=sizes.scale,
        dtype=dtype,
    )


def _extremes() -> list[Question]:
    sizes = Sizes(2, 7, 10, 4, 2, 8, 2)
    base = plain("extremes", sizes, "float32")
    long = Sizes(1, 1, 4096, 1, 1, 8, 4095)
    wide = Sizes(1, 5, 5, 2, 1, 64, 0)

    def unseen(draw: Draw) -> tuple[Given, Given, Given]:
        q, k, v = normal(draw, sizes)
        last = sizes.offset + sizes.queries
        for x in (k, v):
            x.host[:, last:] = UNSEEN
        return q, k, v

    def far(draw: Draw) -> tuple[Given, Given, Given]:
        # every score near -4000: a maximum that starts at 0, or a masked score of 0, ends in 0 / 0
        q, k, v = normal(draw, sizes)
        return draw.of(q.host / 10 + 20), draw.of(k.host / 10 - 70), v

    def steps(draw: Draw) -> tuple[Given, Given, Given]:
        # whole numbers: scores are equal or 200 apart, so that nothing lies between 1 and underflow
        q, k, v = normal(draw, sizes)
        return draw.of(np.round(q.host)), draw.of(np.round(k.host)), v

    def equal(draw: Draw) -> tuple[Given, Given, Given]:
        q, _, v = normal(draw, long, "float16")
        return q, draw.of(np.zeros(v.shape), "float16"), draw.of(v.host + 1.0, "float16")

    return [
        replace(base, variant="unseen-huge", inputs=unseen),
        replace(base, variant="scale-3", scale=3.0),
        replace(base, variant="whole-numbers-scale-200", inputs=steps, scale=200.0),
        replace(base, variant="scale-0", scale=0.0),
        replace(base, variant="scale-negative", scale=-0.7),
        replace(base, variant="scores-near-minus-4000", inputs=far),
        # 4096 terms of 1 end at 2048 where they are summed in half precision
        replace(base, variant="4096-equal-scores-f16", inputs=equal, sizes=long, scale=1.0, dtype="float16"),
        # products of 64 values near 40 are beyond 65504
        replace(
            base,
            variant="scores-beyond-half-f16",
            inputs=lambda draw: normal(draw, wide, "float16", shift=40.0),
            sizes=wide,
            scale=1e-3,
            dtype="float16",
        ),
    ]


def normal(
    draw: Draw, sizes: Sizes, dtype: DType = "float32", view: View = "whole", shift: float = 0.0
) -> tuple[Given, Given, Given]:
    """q, k, v of standard normal values about `shift`."""
    q = draw.normal(sizes.batch, sizes.queries, sizes.heads, sizes.size, dtype=dtype, view=view, shift=shift)
    k, v = (
        draw.normal(sizes.batch, sizes.keys, sizes.kv_heads, sizes.size, dtype=dtype, view=view, shift=shift)
        for _ in range(2)
    )
    return q, k, v


def joint(bench: Bench, sizes: Sizes) -> tuple[tuple[Given, Given, Given], tuple[Any, Any, Any]]:
    """q, k, v as slices of one projection (B, T, (H + 2 K) d), as models have them; S = T."""
    batch, rows, heads, kv_heads, size = sizes.batch, sizes.queries, sizes.heads, sizes.kv_heads, sizes.size
    whole = bench.draw.normal(batch, rows, (heads + 2 * kv_heads) * size)
    placed, layout, start = bench.put(whole), bench.tools.layout, 0
    hosts, arrays = [], []
    for count in (heads, kv_heads, kv_heads):
        stop = start + count * size
        part = layout.slice(placed, (0, 0, start), (batch, rows, stop))
        arrays.append(layout.reshape(part, (batch, rows, count, size)))
        cut = np.ascontiguousarray(whole.host[..., start:stop])
        hosts.append(Given(cut.reshape(batch, rows, count, size), "float32"))
        start = stop
    return (hosts[0], hosts[1], hosts[2]), (arrays[0], arrays[1], arrays[2])


def seen(sizes: Sizes) -> Any:
    """bool (T, S): key j is seen by query i where j <= offset + i."""
    return np.arange(sizes.keys) <= sizes.offset + np.arange(sizes.queries)[:, None]


def slope(question: Question, dy: Given, inputs: tuple[Given, Given, Given]) -> Slope | None:
    """Differences need room: not for gradients rounded to a half, nor where one step moves scores by more than 1."""
    sizes = question.sizes
    steep = question.check == "extremes" and question.variant != "scale-negative"
    if question.dtype in HALVES or steep or not sizes.batch or not sizes.queries:
        return None

    def forward(q: Any, k: Any, v: Any) -> Any:
        return oracle.attend(q, k, v, scale=question.scale, offset=sizes.offset)[0]

    q, k, v = (x.exact for x in inputs)
    return Slope(forward, (q, k, v), dy.exact)


def compare(bench: Bench, labels: tuple[str, ...], got: Any, wants: Any) -> None:
    """Results beside their truths, each under its label."""
    for label, result, want in zip(labels, got, wants, strict=True):
        bench.close(label, result, want)
