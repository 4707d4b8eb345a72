"""Cases of the elementwise slot over integers: exact, wrapping, never through floats."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from turret.spi import DTYPES, FLOATS, DType

from ..case import Build, Case, call_case
from ..given import Call, Draw, Given
from ..oracle import elementwise as oracle
from .naming import SHORT

WRAPPING = ("add", "subtract", "multiply", "maximum", "minimum")
COMPARISONS = ("equal", "less", "less_equal")


def cases() -> Iterator[Case]:
    """Near the ends of the range, where neighbours are one float; whole numbers on either side; equality of all."""
    for dtype in ("int32", "int64"):
        for name in (*WRAPPING, *COMPARISONS) if dtype == "int32" else ("add", "multiply", "equal", "less"):
            yield _pairs(name, dtype)
    for name in (*WRAPPING, *COMPARISONS):
        yield _beside_number(name, left=name in ("subtract", "less"))
    yield _negated()
    for dtype in DTYPES:
        if dtype not in (*FLOATS, "int32", "int64"):
            yield _equal(dtype)


def _ends(draw: Draw, dtype: DType, shape: tuple[int, ...]) -> Given:
    top = 2**31 if dtype == "int32" else 2**62
    whole = np.array([0, 1, -1, 3, -5, 2**24, 2**24 + 1, top - 1, top - 2, -top, 1 - top, 46_341, 65_536])
    return draw.of(draw.rng.choice(whole, shape), dtype)


def _case(name: str, words: str, dtype: DType, build: Build) -> Case:
    gives: DType = "bool" if name in COMPARISONS else dtype
    return call_case(
        f"elementwise/{name.replace('_', '-')}/{words}-{SHORT[dtype]}",
        build,
        getattr(oracle, name),
        returns=(gives,),
        exact=True,
    )


def _pairs(name: str, dtype: DType) -> Case:
    def call(draw: Draw) -> Call:
        return Call("elementwise", name, (_ends(draw, dtype, (40, 1)), _ends(draw, dtype, (1, 33))))

    return _case(name, "40x1_1x33-ends", dtype, call)


def _beside_number(name: str, *, left: bool) -> Case:
    def call(draw: Draw) -> Call:
        x = _ends(draw, "int32", (5, 65))
        return Call("elementwise", name, (3, x) if left else (x, 3))

    return _case(name, "3_5x65" if left else "5x65_3", "int32", call)


def _negated() -> Case:
    def call(draw: Draw) -> Call:
        return Call("elementwise", "negative", (_ends(draw, "int32", (5, 65)),))

    return _case("negative", "5x65", "int32", call)


def _equal(dtype: DType) -> Case:
    def call(draw: Draw) -> Call:
        a, b = (draw.integers(5, 65, low=0, high=2, dtype=dtype) for _ in range(2))
        return Call("elementwise", "equal", (a, b))

    return _case("equal", "5x65", dtype, call)
