"""Cases of the layout slot: every bit must arrive, whatever it means."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from turret.spi import DTYPES, FLOATS, DType, Shape

from ..case import Case, call_case
from ..given import Call, Draw, Given, View
from ..oracle import layout as oracle
from . import layout_chains
from .naming import SHORT, sizes, variant

Options = dict[str, object]
VIEWS: tuple[View, ...] = ("transposed", "strided", "repeated")

METHODS: dict[str, tuple[Any, ...]] = {
    "reshape": ((4, 15),),
    "transpose": ((2, 0, 1),),
    "slice": ((1, 0, 2), (4, 3, 5)),
    "pad": (((1, 2), (0, 0), (3, 1)),),
    "broadcast_to": ((2, 4, 3, 5),),
}
"""Arguments that fit an array of shape (4, 3, 5), tried with every dtype and view."""
RESHAPES: tuple[tuple[Shape, Shape], ...] = (
    ((), (1, 1)),
    ((1,), ()),
    ((6, 5), (30,)),
    ((30,), (2, 3, 5)),
    ((2, 3, 4), (4, 3, 2)),
    ((6, 5), (6, 5)),
    ((0, 4), (2, 0)),
    ((65, 63), (63, 65)),
)
TRANSPOSES: tuple[tuple[Shape, tuple[int, ...]], ...] = (
    ((), ()),
    ((63, 65), (1, 0)),
    ((63, 65), (0, 1)),
    ((2, 3, 4), (1, 2, 0)),
    ((2, 3, 4), (2, 1, 0)),
    ((2, 3, 4, 5), (0, 2, 1, 3)),
    ((2, 3, 4, 5), (3, 1, 0, 2)),
    ((0, 3), (1, 0)),
    ((130, 257), (1, 0)),
)
SLICES: tuple[tuple[Shape, Shape, Shape, Shape | None], ...] = (
    ((), (), (), None),
    ((9,), (2,), (7,), None),
    ((9,), (0,), (9,), (1,)),
    ((9,), (1,), (9,), (3,)),
    ((9,), (8,), (9,), (4,)),
    ((9,), (4,), (4,), None),
    ((9,), (9,), (9,), None),
    ((6, 7), (1, 2), (5, 7), (2, 3)),
    ((6, 7), (0, 6), (6, 7), None),
    ((6, 7), (2, 2), (6, 2), (3, 1)),
    ((4, 3, 5), (3, 0, 1), (4, 3, 4), (2, 2, 2)),
    ((0, 4), (0, 1), (0, 3), None),
    ((3000,), (1,), (2999,), (7,)),
)
JOINS: tuple[tuple[tuple[Shape, ...], int], ...] = (
    (((3, 4),), 0),
    (((3, 4), (3, 1)), 1),
    (((2, 3, 4), (2, 1, 4), (2, 5, 4)), 1),
    (((3, 4), (0, 4), (2, 4)), 0),
    (((0, 4), (0, 4)), 0),
    (((3, 0), (3, 2)), 1),
    (tuple((i % 3, 2) for i in range(40)), 0),
    (((1000, 9), (65, 9)), 0),
    (((5, 1), (5, 1), (5, 1)), 1),
    (((1, 300), (1, 300), (1, 300), (1, 300)), 0),
    (((300, 1), (300, 1), (300, 1), (300, 1)), 1),
    (((4, 1, 1), (4, 1, 1), (4, 1, 1)), 2),
    (((2, 1, 3), (2, 1, 3), (2, 1, 3)), 1),
)
PADS: tuple[tuple[Shape, tuple[tuple[int, int], ...]], ...] = (
    ((), ()),
    ((5,), ((0, 0),)),
    ((5,), ((2, 0),)),
    ((5,), ((0, 3),)),
    ((4, 5), ((1, 2), (3, 0))),
    ((2, 3, 4), ((0, 1), (2, 0), (1, 1))),
    ((0, 3), ((2, 1), (0, 0))),
    ((3, 0), ((0, 0), (1, 1))),
    ((63, 65), ((1, 0), (0, 63))),
)
PADDING: tuple[tuple[DType, float], ...] = (
    ("float32", -math.inf),
    ("float32", math.nan),
    ("float32", -0.0),
    ("float32", -1e30),
    ("float16", -65504.0),
    ("bfloat16", -math.inf),
    ("int32", -7),
    ("int32", 2**31 - 1),
    ("uint8", 255),
    ("bool", 1),
)
BROADCASTS: tuple[tuple[Shape, Shape], ...] = (
    ((), ()),
    ((), (3, 4)),
    ((1,), (5,)),
    ((4,), (3, 4)),
    ((3, 1), (3, 4)),
    ((2, 1, 4), (2, 3, 4)),
    ((1, 1), (0, 5)),
    ((3, 1), (3, 0)),
    ((3, 4), (3, 4)),
    ((1, 65), (1000, 65)),
)


def cases() -> Iterator[Case]:
    """Every method over every dtype and view; shapes, steps, empty pieces, values of the padding."""
    for method, arguments in METHODS.items():
        for dtype in DTYPES:
            yield _moved(method, (4, 3, 5), arguments, dtype=dtype)
        for view in VIEWS:
            yield _moved(method, (4, 3, 5), arguments, view=view)
    for shape, new in RESHAPES:
        yield _moved("reshape", shape, (new,), words=sizes(new))
    for shape, axes in TRANSPOSES:
        yield _moved("transpose", shape, (axes,), words=f"axes{''.join(map(str, axes))}")
    for shape, start, stop, step in SLICES:
        words = f"{sizes(start)}-to-{sizes(stop)}" + (f"-by-{sizes(step)}" if step else "")
        yield _moved("slice", shape, (start, stop), words=words, options={"step": step} if step else {})
    for shape, new in BROADCASTS:
        yield _moved("broadcast_to", shape, (new,), words=sizes(new))
    for shape, widths in PADS:
        yield _moved("pad", shape, (widths,), words="_".join(f"{a}-{b}" for a, b in widths))
    for dtype, value in PADDING:
        yield _moved("pad", (3, 4), (((1, 0), (0, 2)),), dtype=dtype, words=f"with{value}", options={"value": value})
    for shapes, axis in JOINS:
        yield _joined(shapes, axis)
    for dtype in DTYPES:
        yield _joined(((3, 4), (2, 4)), 0, dtype=dtype)
    for view in VIEWS:
        yield _joined(((3, 4), (3, 4), (3, 4)), 1, view=view)
    yield _same_twice()
    yield from layout_chains.cases()


def bits(draw: Draw, dtype: DType, shape: Shape, view: View = "whole") -> Given:
    """Values whose every bit counts: signed zeros, infinities, NaN, subnormals and the greatest among them."""
    if dtype == "bool":
        return draw.booleans(*shape, view=view)
    if dtype not in FLOATS:
        low, high = {"int32": (-(2**31), 2**31), "uint8": (0, 256)}.get(dtype, (-(2**62), 2**62))
        return draw.integers(*shape, low=low, high=high, dtype=dtype, view=view)
    x = draw.rng.standard_normal(shape)
    special = np.array(
        [-0.0, 0.0, math.inf, -math.inf, math.nan, 2.0**-133 if dtype != "float16" else 2.0**-20, 65504.0]
    )
    chosen = draw.rng.random(shape) < 0.3
    return draw.of(np.where(chosen, draw.rng.choice(special, shape), x), dtype, view)


def _moved(
    method: str,
    shape: Shape,
    arguments: tuple[Any, ...],
    *,
    dtype: DType = "float32",
    view: View = "whole",
    words: str = "",
    options: Options | None = None,
) -> Case:
    truth: Callable[..., Any] = getattr(oracle, method)

    def call(draw: Draw) -> Call:
        return Call("layout", method, (bits(draw, dtype, shape, view), *arguments), options or {})

    name = f"layout/{method.replace('_', '-')}/{variant(shape, dtype, view)}{'-' if words else ''}{words}"
    return call_case(name, call, truth, returns=(dtype,), exact=True, may_alias=True)


def _joined(shapes: tuple[Shape, ...], axis: int, *, dtype: DType = "float32", view: View = "whole") -> Case:
    """The views alternate, so that one call meets several."""

    def call(draw: Draw) -> Call:
        views: tuple[View, ...] = (view, "whole")
        parts = tuple(bits(draw, dtype, shape, views[n % len(views)]) for n, shape in enumerate(shapes))
        return Call("layout", "concatenate", (parts,), {"axis": axis})

    size = "_".join(map(sizes, shapes)) if len(shapes) < 9 else f"{len(shapes)}-pieces"
    words = f"{size}{'' if view == 'whole' else '-' + view}-{SHORT[dtype]}-axis{axis}"
    return call_case(
        f"layout/concatenate/{words}", call, oracle.concatenate, returns=(dtype,), exact=True, may_alias=True
    )


def _same_twice() -> Case:
    """One array given twice lies there twice."""

    def call(draw: Draw) -> Call:
        x = bits(draw, "float32", (3, 4))
        return Call("layout", "concatenate", ((x, x),), {"axis": 1})

    return call_case(
        "layout/concatenate/same-twice-f32", call, oracle.concatenate, returns=("float32",), exact=True, may_alias=True
    )
