"""Cases of the reduction slot."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import numpy as np

from turret.spi import HALVES, DType, Shape, ShapeError

from ..bench import Bench
from ..case import Case, call_case
from ..given import Call, Draw, Given, View
from ..oracle import reduction as oracle
from .naming import variant

Axes = int | tuple[int, ...]
Build = Callable[[Draw], Given]

FOLDS = ("sum", "mean", "max")
FORMS: tuple[tuple[Shape, Axes, bool], ...] = (
    ((1,), 0, False),
    ((63,), 0, False),
    ((1500, 1), 1, False),
    ((1, 1500), 0, True),
    ((40, 1, 33), (1,), False),
    ((65,), -1, True),
    ((5, 65), 1, False),
    ((5, 65), -1, True),
    ((65, 5), 0, False),
    ((4, 5, 6), (0, 2), False),
    ((4, 5, 6), (-1, 0), True),
    ((4, 5, 6), (0, 1), True),
    ((4, 5, 6), (1, 2), False),
    ((4, 5, 6), 1, False),
    ((4, 5, 6), (0, 1, 2), False),
    ((2, 3, 4, 5), (1, -1), False),
    ((2, 3, 4, 5), (0, 1, 2, 3), True),
)
PLACED: tuple[tuple[Shape, int, bool], ...] = (
    ((1,), 0, False),
    ((1500, 1), 1, False),
    ((65,), 0, False),
    ((5, 65), 1, False),
    ((5, 65), -1, True),
    ((65, 5), 0, False),
    ((4, 5, 6), 1, True),
    ((4, 5, 6), -3, False),
    ((3, 2049), 1, False),
)
VIEWS: tuple[View, ...] = ("transposed", "strided", "offset", "repeated")
OTHERS: tuple[DType, ...] = ("float16", "bfloat16", "float64")


def cases() -> Iterator[Case]:
    """Axes, emptiness, wrapping, NaN, halves, long rows, views; the first of equals."""
    for method in FOLDS:
        for shape, axis, keepdims in FORMS:
            yield _fold(method, shape, axis, keepdims=keepdims)
        for view in VIEWS:
            yield _fold(method, (6, 34), 0 if view in ("transposed", "repeated") else 1, view=view)
        for dtype in OTHERS:
            yield _fold(method, (5, 65), -1, dtype=dtype)
            yield _fold(method, (33, 4, 5), (0, 2), dtype=dtype, keepdims=True)
        for shape, axis in (((3, 30_001), 1), ((30_001, 3), 0), ((100_001,), 0)):
            yield _fold(method, shape, axis, check="-sparse", build=_sparse(shape))
        yield from _special(method)
    for method in ("sum", "mean"):
        yield _fold(method, (1, 100_000), 1)
        yield _fold(method, (100_000, 1), 0)
    for shape, axis, keepdims in PLACED:
        yield _fold("argmax", shape, axis, keepdims=keepdims)
    for view in VIEWS[:2]:
        yield _fold("argmax", (6, 34), 1, view=view)
    for dtype in OTHERS:
        yield _fold("argmax", (5, 65), -1, dtype=dtype)
    yield from _empty()
    yield from _integers()
    yield from _halves()
    yield from _ties()


def _fold(
    method: str,
    shape: Shape,
    axis: Axes,
    *,
    dtype: DType = "float32",
    keepdims: bool = False,
    view: View = "whole",
    check: str = "",
    build: Build | None = None,
) -> Case:
    """One call; by default on normal values with a mean, so that a lost element is seen."""

    def call(draw: Draw) -> Call:
        x = build(draw) if build is not None else draw.normal(*shape, dtype=dtype, shift=0.5, view=view)
        return Call("reduction", method, (x,), {"axis": axis, "keepdims": keepdims})

    over = "axis" + ("_".join(map(str, axis)) if isinstance(axis, tuple) else str(axis))
    name = f"reduction/{method}{check}/{variant(shape, dtype, view)}-{over}{'-keepdims' if keepdims else ''}"
    exact = method in ("max", "argmax") or dtype in ("int32", "int64")
    returns: tuple[DType, ...] = ("int32" if method == "argmax" else dtype,)
    return call_case(name, call, getattr(oracle, method), returns=returns, exact=exact)


def _special(method: str) -> Iterator[Case]:
    """NaN and infinities, at the ends of rows longer than a block and next to sizes that vectors like."""
    for name, values in (
        ("-nan", (math.nan,)),
        ("-inf", (math.inf,)),
        ("-minus-inf", (-math.inf,)),
        ("-both-infs", (math.inf, -math.inf)),
        ("-nan-and-inf", (math.inf, math.nan)),
    ):
        for axis in (0, 1) if method == "max" else (1,):

            def build(draw: Draw, values: tuple[float, ...] = values, axis: int = axis) -> Given:
                x = draw.rng.standard_normal((4, 1500) if axis else (1500, 4))
                rows = x if axis else x.T
                rows[1, : len(values)] = values
                rows[2, -len(values) :] = values
                rows[3, 1023 : 1023 + len(values)] = values
                return draw.of(x)

            yield _fold(method, (4, 1500) if axis else (1500, 4), axis, check=name, build=build)


def _sparse(shape: Shape) -> Build:
    """Zeros but for a few places along the longest axis, so that none of these can be lost in the sum's tolerance."""

    def build(draw: Draw) -> Given:
        length = max(shape)
        x = np.zeros((math.prod(shape) // length, length))
        for row in range(len(x)):
            x[row, [0, 1023, 1024, 16_384, length - 2, length - 1]] = np.roll([1.0, 2, 4, 8, 16, 32], row)
        return draw.of(x.T if shape == x.T.shape else x.reshape(shape))

    return build


def _empty() -> Iterator[Case]:
    """0 for a sum of nothing, NaN for its mean, ShapeError for its greatest; nothing to fold is no error."""
    for method in FOLDS:
        yield _fold(method, (0, 4), 1)
        yield _fold(method, (3, 0, 4), (0, 2))
    for method in ("sum", "mean"):
        for dtype in ("float32", *OTHERS):
            yield _fold(method, (3, 0), 1, dtype=dtype)
        yield _fold(method, (0,), 0)
        yield _fold(method, (0, 4), 0, keepdims=True)
        yield _fold(method, (2, 0, 3), (0, 1))
    yield _fold("sum", (3, 0), 1, dtype="int32")
    yield _fold("argmax", (0, 4), 1)
    for shape, axis in (((0,), 0), ((3, 0), 1), ((3, 0), -1), ((2, 0, 3), (0, 1))):
        yield _refused(shape, axis)


def _refused(shape: Shape, axis: Axes) -> Case:
    def body(bench: Bench) -> None:
        x = bench.put(bench.draw.normal(*shape))
        for keepdims in (False, True):
            text = bench.refuses(
                ShapeError,
                lambda k=keepdims: bench.tools.reduction.max(x, axis=axis, keepdims=k),  # type: ignore[misc]
            )
            bench.require(text, "the ShapeError has no text")

    over = "_".join(map(str, axis)) if isinstance(axis, tuple) else str(axis)
    return Case(id=f"reduction/max-of-nothing/{variant(shape, 'float32')}-axis{over}", body=body, kind="forward")


def _integers() -> Iterator[Case]:
    """int32 stays int32 and wraps; neighbours beyond 2^24 are told apart."""
    for dtype in ("int32", "int64"):
        for method in ("sum", "max"):
            yield _fold(method, (5, 65), 1, dtype=dtype, build=_near_the_top(dtype, (5, 65)))
            yield _fold(method, (4, 5, 6), (0, 2), dtype=dtype, keepdims=True, build=_near_the_top(dtype, (4, 5, 6)))
            yield _fold(method, (65, 3), 0, dtype=dtype, build=_near_the_top(dtype, (65, 3)))
        yield _fold("argmax", (5, 65), 1, dtype=dtype, build=_near_the_top(dtype, (5, 65)))
    yield _fold("max", (2, 3), 1, dtype="int32", check="-negative", build=lambda draw: _negatives(draw, (2, 3)))
    yield _fold("argmax", (2, 3), 1, dtype="int32", check="-negative", build=lambda draw: _negatives(draw, (2, 3)))


def _near_the_top(dtype: DType, shape: Shape) -> Build:
    top = 2**31 - 1 if dtype == "int32" else 2**62
    return lambda draw: draw.integers(*shape, low=top - 40, high=top, dtype=dtype)


def _negatives(draw: Draw, shape: Shape) -> Given:
    return draw.integers(*shape, low=-(2**31), high=-(2**31) + 9)


def _halves() -> Iterator[Case]:
    """What a half cannot sum: 60000s overflow, ones stop at 2048 or 256; both ways through memory."""
    for dtype in sorted(HALVES):
        for shape, axis in (((3, 4096), 1), ((4096, 3), 0)):
            for method in ("sum", "mean"):
                yield _fold(method, shape, axis, dtype=dtype, check="-ones", build=_constant(dtype, shape, 1.0))
                yield _fold(method, shape, axis, dtype=dtype, check="-small", build=_uniform(dtype, shape))
            yield _fold("mean", shape, axis, dtype=dtype, check="-large", build=_constant(dtype, shape, 60_000.0))
    yield _fold("sum", (3, 4096), 1, dtype="float16", check="-beyond", build=_constant("float16", (3, 4096), 60_000.0))


def _constant(dtype: DType, shape: Shape, value: float) -> Build:
    return lambda draw: draw.of(np.full(shape, value), dtype)


def _uniform(dtype: DType, shape: Shape) -> Build:
    return lambda draw: draw.uniform(*shape, low=0.0, high=0.25, dtype=dtype)


def _ties() -> Iterator[Case]:
    """The first of equals wins, wherever a backend cuts a row into blocks."""
    rows: tuple[tuple[str, int, tuple[int, ...], float], ...] = (
        ("ends", 65, (0, 64), 9.0),
        ("last-two", 65, (63, 64), 9.0),
        ("across-blocks", 3000, (1023, 1024, 2999), 9.0),
        ("far-apart", 5000, (31, 4999), 9.0),
        ("late", 5000, (2050, 2049 + 512, 4999), 9.0),
        ("infinite", 1500, (700, 1100), math.inf),
        ("last-alone", 4097, (4096,), 9.0),
    )
    for name, length, places, value in rows:

        def build(draw: Draw, n: int = length, at: tuple[int, ...] = places, v: float = value) -> Given:
            x = draw.rng.uniform(-1, 1, (3, n))
            x[:, list(at)] = v
            return draw.of(x)

        yield _fold("argmax", (3, length), 1, check=f"-ties-{name}", build=build)
    yield _fold("argmax", (3, 2000), 1, check="-all-equal", build=lambda draw: draw.of(np.full((3, 2000), -2.5)))
    yield _fold("argmax", (3, 70), 1, check="-all-lowest", build=lambda draw: draw.of(np.full((3, 70), -math.inf)))
    yield _fold("argmax", (2, 3), 1, check="-zeros", build=lambda draw: draw.of([[-0.0, 0.0, 0.0], [-1.0, -0.0, 0.0]]))
    yield _fold("argmax", (40, 6), 0, check="-ties-columns", build=_tied_columns)
    yield _fold("argmax", (3, 65), 1, dtype="int32", check="-ties", build=lambda d: d.integers(3, 65, low=0, high=3))
    yield Case(id="reduction/argmax-ties/same-at-every-run", body=_same_ties, kind="forward")


def _tied_columns(draw: Draw) -> Given:
    return draw.integers(40, 6, low=0, high=3, dtype="float32")


def _same_ties(bench: Bench) -> None:
    given = bench.draw.integers(4, 6000, low=0, high=2, dtype="float32")
    x = bench.put(given)
    want = np.argmax(given.host, axis=1).astype(np.int32)
    for _ in range(3):
        bench.exact("first of the greatest", bench.tools.reduction.argmax(x, axis=1), want, "int32")
