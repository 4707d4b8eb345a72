"""Cases of the rope slot."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import numpy as np

from turret.spi import HALVES, DType, Host

from ..case import Case, call_case
from ..given import Call, Draw, Given, Slope, View
from ..oracle import rope as oracle
from .variants import variant

Sizes = tuple[int, int, int, int]
"""B, T, H, d."""
SIZES: tuple[Sizes, ...] = (
    (1, 1, 1, 2),
    (1, 1, 4, 64),
    (2, 5, 3, 8),
    (2, 63, 2, 6),
    (1, 65, 3, 66),
    (3, 7, 1, 10),
    (1, 1025, 1, 4),
    (2, 3, 2, 256),
    (1, 2, 33, 4),
    (0, 4, 2, 8),
    (2, 0, 2, 8),
)
BY_ROW: tuple[Sizes, ...] = ((2, 5, 3, 8), (1, 3, 2, 4), (3, 33, 2, 10), (4, 1, 4, 64))
NARROW: tuple[DType, ...] = ("float16", "bfloat16", "float64")
VIEWS: tuple[View, ...] = ("transposed", "strided", "offset", "repeated")
VIEWED: Sizes = (2, 5, 3, 8)
Views = Mapping[str, View]
Angles = Callable[[Draw, tuple[int, ...]], tuple[Host, Host]]
"""Draws cos and sin of a shape."""


def cases() -> Iterator[Case]:
    """Both pairings, forward and back: sizes, angles for all rows or by row, far positions, views, dtypes."""
    for interleaved in (False, True):
        for sizes in SIZES:
            yield from _both(sizes, interleaved)
        for sizes in BY_ROW:
            yield from _both(sizes, interleaved, by_row=True)
        for view in VIEWS:
            yield from _both(VIEWED, interleaved, views={"x": view})
            by_row = view in ("transposed", "offset")
            yield from _both(VIEWED, interleaved, by_row=by_row, views={"cos": view, "sin": view})
        yield from _both(VIEWED, interleaved, by_row=True, views={"cos": "strided", "sin": "offset"})
        for dtype in NARROW:
            yield from _both((2, 9, 3, 16), interleaved, dtype)
            yield from _both((3, 5, 2, 6), interleaved, dtype, by_row=True)
        for word, angles in ANGLES.items():
            yield from _both((2, 7, 2, 12), interleaved, word=word, angles=angles)
        yield from _not_finite(interleaved)


def _drawn(draw: Draw, shape: tuple[int, ...]) -> tuple[Host, Host]:
    """Any angle at each place, so that no row, position or pair can stand for another."""
    angles = draw.rng.uniform(-np.pi, np.pi, shape)
    return np.cos(angles), np.sin(angles)


def _positions(start: float) -> Angles:
    """Position times 10000^(-2i/d), counted from `start`."""

    def draw_angles(draw: Draw, shape: tuple[int, ...]) -> tuple[Host, Host]:
        length, half = shape[-2:]
        angles = np.outer(start + np.arange(length), 1e4 ** (-np.arange(half) / half))
        return np.cos(angles), np.sin(angles)

    return draw_angles


def _scaled(draw: Draw, shape: tuple[int, ...]) -> tuple[Host, Host]:
    """Turns that lengthen as well, as models for long contexts use them: the transpose is not the inverse."""
    cos, sin = _drawn(draw, shape)
    return 1.4 * cos, 1.4 * sin


def _quarters(draw: Draw, shape: tuple[int, ...]) -> tuple[Host, Host]:
    """Quarters of a turn: zeros, ones and signs."""
    turns = draw.rng.integers(0, 4, shape)
    return np.array([1.0, 0.0, -1.0, 0.0])[turns], np.array([0.0, 1.0, 0.0, -1.0])[turns]


ANGLES: dict[str, Angles] = {
    "positions": _positions(0.0),
    "positions-1e5": _positions(1e5),
    "scaled": _scaled,
    "quarters": _quarters,
}


def _both(
    sizes: Sizes,
    interleaved: bool,
    dtype: DType = "float32",
    *,
    by_row: bool = False,
    views: Views | None = None,
    word: str = "",
    angles: Angles = _drawn,
) -> Iterator[Case]:
    """The turn of x and the opposite turn of dy. cos and sin are float32 whatever x is."""
    batch, length, _, size = sizes
    chosen = views or {}
    options: dict[str, object] = {"interleaved": interleaved}

    def inputs(draw: Draw) -> tuple[Given, Given, Given]:
        x = draw.normal(*sizes, dtype=dtype, view=chosen.get("x", "whole"))
        cos, sin = angles(draw, (*([batch] if by_row else []), length, size // 2))
        return (
            x,
            draw.of(cos, "float32", chosen.get("cos", "whole")),
            draw.of(sin, "float32", chosen.get("sin", "whole")),
        )

    def forward(draw: Draw) -> Call:
        return Call("rope", "rope", inputs(draw), options)

    def backward(draw: Draw) -> Call:
        dy, cos, sin = given = inputs(draw)
        slope = None
        if dtype not in HALVES:
            c, s, point = cos.exact, sin.exact, draw.rng.standard_normal(sizes)
            slope = Slope(lambda x: oracle.rope(x, c, s, interleaved=interleaved), (point,), dy.exact)
        return Call("rope", "rope_vjp", given, options, slope=slope)

    words = (word, "by-row" if by_row else "", *(f"{operand}-{view}" for operand, view in chosen.items()))
    name = variant(sizes, dtype, *words)
    yield call_case(f"rope/{_check(interleaved)}/{name}", forward, oracle.rope)
    yield call_case(f"rope/{_check(interleaved)}-vjp/{name}", backward, oracle.rope_vjp, kind="vjp")


def _not_finite(interleaved: bool) -> Iterator[Case]:
    """NaN and infinity reach their own pair and no other; huge and tiny numbers turn like any."""

    def inputs(draw: Draw) -> tuple[Given, Given, Given]:
        x = draw.rng.standard_normal((2, 3, 2, 8))
        x[0, 1, 0, 3], x[1, 2, 1, 7], x[0, 0], x[1, 0] = np.nan, np.inf, x[0, 0] * 1e30, x[1, 0] * 1e-30
        cos, sin = _drawn(draw, (3, 4))
        return draw.of(x), draw.of(cos), draw.of(sin)

    options: dict[str, object] = {"interleaved": interleaved}
    name = variant((2, 3, 2, 8), "float32", "not-finite")
    check = _check(interleaved)
    yield call_case(f"rope/{check}/{name}", lambda draw: Call("rope", "rope", inputs(draw), options), oracle.rope)
    yield call_case(
        f"rope/{check}-vjp/{name}",
        lambda draw: Call("rope", "rope_vjp", inputs(draw), options),
        oracle.rope_vjp,
        kind="vjp",
    )


def _check(interleaved: bool) -> str:
    return "interleaved" if interleaved else "half-split"
