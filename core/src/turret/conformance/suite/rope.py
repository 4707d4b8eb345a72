"""Cases of the rope slot."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

import numpy as np

from turret.spi import HALVES, DType, Host, Shape

from ..case import Case, call_case
from ..given import Call, Draw, Given, Slope
from ..oracle import rope as oracle
from .naming import variant
from .views import Views, cut_out, of, rotated

Angles = Callable[[Draw, Shape], tuple[Host, Host]]
"""Draws cos and sin of a shape."""


def _any(draw: Draw, shape: Shape) -> tuple[Host, Host]:
    """Any angle at each place, so that no row, position or pair can stand for another."""
    angles = draw.rng.uniform(-np.pi, np.pi, shape)
    return np.cos(angles), np.sin(angles)


def _far(draw: Draw, shape: Shape) -> tuple[Host, Host]:
    """Position times 10000^(-2i/d), the positions from 1e5 on."""
    length, half = shape[-2:]
    angles = np.outer(1e5 + np.arange(length), 1e4 ** (-np.arange(half) / half))
    return np.cos(angles), np.sin(angles)


def _scaled(draw: Draw, shape: Shape) -> tuple[Host, Host]:
    """Turns that lengthen as well, as models for long contexts use them: the transpose is not the inverse."""
    cos, sin = _any(draw, shape)
    return 1.4 * cos, 1.4 * sin


def _quarters(draw: Draw, shape: Shape) -> tuple[Host, Host]:
    """Quarters of a turn: zeros, ones and signs."""
    turns = draw.rng.integers(0, 4, shape)
    return np.array([1.0, 0.0, -1.0, 0.0])[turns], np.array([0.0, 1.0, 0.0, -1.0])[turns]


@dataclass(frozen=True, slots=True)
class Turn:
    """One call. sizes: B, T, H, d. by_row: angles for each row of the batch; they are float32 whatever x is."""

    sizes: tuple[int, int, int, int]
    by_row: bool = False
    dtype: DType = "float32"
    views: Views = field(default_factory=dict)
    word: str = ""
    angles: Angles = _any
    interleaved: bool = False

    @property
    def check(self) -> str:
        return "interleaved" if self.interleaved else "half-split"

    @property
    def options(self) -> dict[str, object]:
        return {"interleaved": self.interleaved}

    @property
    def variant(self) -> str:
        return variant(self.sizes, self.dtype, self.word, "by-row" if self.by_row else "", views=self.views)

    def inputs(self, draw: Draw) -> tuple[Given, Given, Given]:
        batch, length, _, size = self.sizes
        x = draw.normal(*self.sizes, dtype=self.dtype, view=of(self.views, "x"))
        cos, sin = self.angles(draw, (*([batch] if self.by_row else []), length, size // 2))
        return x, draw.of(cos, view=of(self.views, "cos")), draw.of(sin, view=of(self.views, "sin"))


TURNS = (
    Turn((1, 1, 1, 2)),
    Turn((1, 1, 4, 64)),
    Turn((2, 63, 2, 6)),
    Turn((1, 1025, 1, 4)),
    Turn((2, 3, 2, 256)),
    Turn((0, 4, 2, 8)),
    Turn((1, 3, 2, 4), by_row=True),
    *(Turn((2, 5, 3, 8), views=views, by_row=n % 2 == 0) for n, views in enumerate(rotated("x", "cos", "sin"))),
    Turn((2, 7, 2, 12), word="quarters", angles=_quarters),
)
TURNS_BOTH_WAYS = (
    Turn((2, 5, 3, 8)),
    Turn((1, 65, 3, 66)),
    Turn((3, 7, 1, 10)),
    Turn((2, 0, 2, 8)),
    Turn((3, 33, 2, 10), by_row=True),
    Turn((4, 1, 4, 64), by_row=True),
    Turn((2, 5, 2, 6), views={"x": "transposed", "cos": "strided", "sin": "offset"}, by_row=True),
    Turn((2, 7, 2, 12), word="positions-1e5", angles=_far),
    Turn((2, 7, 2, 12), word="scaled", angles=_scaled),
    Turn((3, 9, 2, 6), by_row=True, dtype="float16"),
    Turn((3, 9, 2, 6), by_row=True, dtype="bfloat16"),
    Turn((3, 9, 2, 6), by_row=True, dtype="float64"),
)


def cases() -> Iterator[Case]:
    """Both pairings, forward and back: sizes, angles for all rows or by row, far positions, views, dtypes."""
    for interleaved in (False, True):
        for turn in (*TURNS, *TURNS_BOTH_WAYS):
            yield _forward(replace(turn, interleaved=interleaved))
        for turn in TURNS_BOTH_WAYS:
            yield _backward(replace(turn, interleaved=interleaved))
        yield _cut_out(Turn((2, 5, 3, 8), by_row=True, interleaved=interleaved))
        yield _not_finite(interleaved)


def _forward(turn: Turn) -> Case:
    def build(draw: Draw) -> Call:
        return Call("rope", "rope", turn.inputs(draw), turn.options)

    return call_case(f"rope/{turn.check}/{turn.variant}", build, oracle.rope)


def _backward(turn: Turn) -> Case:
    def build(draw: Draw) -> Call:
        dy, cos, sin = given = turn.inputs(draw)
        slope = None
        if turn.dtype not in HALVES:
            c, s, point = cos.exact, sin.exact, draw.rng.standard_normal(turn.sizes)
            slope = Slope(lambda x: oracle.rope(x, c, s, interleaved=turn.interleaved), (point,), dy.exact)
        return Call("rope", "rope_vjp", given, turn.options, slope=slope)

    return call_case(f"rope/{turn.check}-vjp/{turn.variant}", build, oracle.rope_vjp, kind="vjp")


def _cut_out(turn: Turn) -> Case:
    """As queries and keys are where one product made them together."""

    def build(draw: Draw) -> Call:
        return Call("rope", "rope", turn.inputs(draw), turn.options)

    return cut_out(f"rope/{turn.check}", build, oracle.rope)


def _not_finite(interleaved: bool) -> Case:
    """NaN and infinity reach their own pair and no other; huge and tiny numbers turn like any."""
    turn = Turn((2, 3, 2, 8), interleaved=interleaved, word="not-finite")

    def build(draw: Draw) -> Call:
        x = draw.rng.standard_normal(turn.sizes)
        x[0, 1, 0, 3], x[1, 2, 1, 7] = np.nan, np.inf
        x[0, 0] *= 1e30
        x[1, 0] *= 1e-30
        return Call("rope", "rope", (draw.of(x), *turn.inputs(draw)[1:]), turn.options)

    return call_case(f"rope/{turn.check}/{turn.variant}", build, oracle.rope)
