"""Cases of the elementwise slot: every function over shapes, operands, dtypes and views."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from turret.spi import DTYPES, DType, Host, Shape

from ..bench import Bench
from ..case import Case, call_case
from ..given import Call, Draw, Given, View
from ..oracle import elementwise as oracle
from . import elementwise_integers, elementwise_values
from .layout import bits
from .naming import SHORT, sizes, variant

Views = tuple[View, View]

ARITHMETIC = ("add", "subtract", "multiply", "divide", "maximum", "minimum")
COMPARISONS = ("equal", "less", "less_equal")
UNARY: dict[str, tuple[float, float]] = {
    "negative": (-9.0, 9.0),
    "exp": (-8.0, 8.0),
    "log": (0.01, 30.0),
    "sqrt": (0.0, 90.0),
    "rsqrt": (0.01, 90.0),
    "tanh": (-5.0, 5.0),
    "erf": (-3.5, 3.5),
    "isfinite": (-9.0, 9.0),
}
"""Where each function is looked at; its ends and what lies beyond are in `elementwise_values`."""
EXACT = {"maximum", "minimum", "negative", "where"}
OTHERS: tuple[DType, ...] = ("float16", "bfloat16", "float64")
PAIRS: tuple[tuple[Shape, Shape], ...] = (((3, 1), (1, 4)), ((), ()))
BROADCASTS: tuple[tuple[Shape, Shape], ...] = (
    ((5, 7), (7,)),
    ((7,), (5, 7)),
    ((2, 1, 3), (4, 1)),
    ((), (3, 4)),
    ((4, 1, 65), (1, 9, 1)),
    ((0,), (1,)),
    ((3, 0), (1,)),
    ((0, 4), (0, 4)),
    ((20_001,), (20_001,)),
    ((130, 129), (130, 129)),
    ((150, 130), (1, 130)),
    ((150, 130), (150, 1)),
)
SCALARS: tuple[tuple[float, Shape, DType, bool], ...] = (
    (1.0, (5, 7), "float32", False),
    (-2, (), "float32", True),
    (1.0, (5, 7), "float16", True),
    (3, (5, 7), "float16", True),
    (-2, (5, 7), "bfloat16", False),
)
"""Number, shape, dtype, and whether the number stands on the left."""
VIEWS: tuple[Views, ...] = (("transposed", "strided"), ("offset", "repeated"))
CHOICES: tuple[tuple[Shape, Shape, Shape], ...] = (
    ((65,), (65,), (65,)),
    ((), (), ()),
    ((5, 1), (1, 7), (5, 7)),
    ((5, 7), (), (7,)),
    ((7,), (5, 7), (1,)),
    ((2, 1, 1), (3, 1), (4,)),
    ((0,), (1,), (0,)),
    ((130, 129), (130, 129), (129,)),
)


def cases() -> Iterator[Case]:
    """Operands of every kind, then exact integers, then the values where functions are hard."""
    for name in (*ARITHMETIC, *COMPARISONS):
        for a, b in PAIRS:
            yield _binary(name, a, b)
        for dtype in OTHERS:
            yield _binary(name, (5, 65), (5, 65), dtype=dtype)
        for views in VIEWS:
            yield _binary(name, (6, 34), (6, 34), views=views)
        yield from _with_scalar(name)
    for a, b in BROADCASTS:
        yield _binary("subtract", a, b)
    for name in ("add", "multiply", "divide", "maximum", "less"):
        yield _binary(name, (20_001,), (20_001,))
    for name in UNARY:
        for shape in ((5, 1000), (), (0, 3)):
            yield _unary(name, shape)
        for dtype in OTHERS:
            yield _unary(name, (5, 65), dtype=dtype)
        for view in ("transposed", "strided"):
            yield _unary(name, (6, 34), view=view)
    yield from _choices()
    yield from _conjunctions()
    yield Case(id="elementwise/itself/f32", body=_with_itself, kind="forward")
    yield from elementwise_integers.cases()
    yield from elementwise_values.cases()


def _operand(draw: Draw, name: str, shape: Shape, dtype: DType, view: View = "whole") -> Given:
    """Few values where order and equality matter, so that equals meet; elsewhere any, away from 0 for a divisor."""
    if name in COMPARISONS:
        return draw.integers(*shape, low=-2, high=3, dtype=dtype, view=view)
    sign = draw.rng.choice([-1.0, 1.0], shape)
    return draw.of(sign * draw.rng.uniform(0.3, 4.0, shape), dtype, view)


def _binary(name: str, a: Shape, b: Shape, *, dtype: DType = "float32", views: Views = ("whole", "whole")) -> Case:
    def call(draw: Draw) -> Call:
        left, right = (_operand(draw, name, x, dtype, view) for x, view in zip((a, b), views, strict=True))
        return Call("elementwise", name, (left, right))

    words = variant(a, dtype, *views) if a == b else f"{sizes(a)}_{variant(b, dtype, *views)}"
    return _case(name, words, call, dtype)


def _with_scalar(name: str) -> Iterator[Case]:
    """A Python number on either side, a whole one also beside floats; it takes the array's dtype."""
    for number, shape, dtype, left in SCALARS:

        def call(
            draw: Draw, number: float = number, shape: Shape = shape, dtype: DType = dtype, left: bool = left
        ) -> Call:
            x = _operand(draw, name, shape, dtype)
            return Call("elementwise", name, (number, x) if left else (x, number))

        operands = (str(number), sizes(shape))
        yield _case(name, f"{'_'.join(operands if left else operands[::-1])}-{SHORT[dtype]}", call, dtype)


def _unary(name: str, shape: Shape, *, dtype: DType = "float32", view: View = "whole") -> Case:
    low, high = UNARY[name]

    def call(draw: Draw) -> Call:
        return Call("elementwise", name, (draw.uniform(*shape, low=low, high=high, dtype=dtype, view=view),))

    return _case(name, variant(shape, dtype, view), call, dtype)


def _case(name: str, words: str, call: Callable[[Draw], Call], dtype: DType) -> Case:
    gives: DType = "bool" if name in (*COMPARISONS, "isfinite", "logical_and") else dtype
    truth: Callable[..., Any] = getattr(oracle, name)
    identity = f"elementwise/{name.replace('_', '-')}/{words}"
    return call_case(identity, call, truth, returns=(gives,), exact=name in EXACT)


def _choices() -> Iterator[Case]:
    """Every dtype and shape; what is not chosen never matters."""
    for condition, a, b in CHOICES:

        def call(draw: Draw, c: Shape = condition, a: Shape = a, b: Shape = b) -> Call:
            return Call("elementwise", "where", (draw.booleans(*c), bits(draw, "float32", a), bits(draw, "float32", b)))

        words = "_".join(map(sizes, (condition, a, b)))
        yield _case("where", f"{words}-f32", call, "float32")
    for dtype in DTYPES:

        def typed(draw: Draw, dtype: DType = dtype) -> Call:
            a, b = bits(draw, dtype, (5, 65)), bits(draw, dtype, (5, 65))
            return Call("elementwise", "where", (draw.booleans(5, 65), a, b))

        yield _case("where", f"5x65-{SHORT[dtype]}", typed, dtype)
    for view in ("transposed", "strided", "repeated"):

        def viewed(draw: Draw, view: View = view) -> Call:
            a, b = bits(draw, "float32", (6, 34), view), bits(draw, "float32", (6, 34))
            return Call("elementwise", "where", (draw.booleans(6, 34, view=view), a, b))

        yield _case("where", variant((6, 34), "float32", view), viewed, "float32")
    for dtype in ("float32", "float16", "int32"):
        for left in (True, False):

            def beside(draw: Draw, dtype: DType = dtype, left: bool = left) -> Call:
                x, number = bits(draw, dtype, (5, 7)), -3 if dtype == "int32" else float("-inf")
                return Call("elementwise", "where", (draw.booleans(5, 7), *((number, x) if left else (x, number))))

            yield _case("where", f"5x7-number-{'left' if left else 'right'}-{SHORT[dtype]}", beside, dtype)
    yield Case(id="elementwise/where/unchosen-f32", body=_unchosen, kind="forward")


def _unchosen(bench: Bench) -> None:
    """NaN and infinities on the side that is not taken leave no trace."""
    draw, where = bench.draw, bench.tools.elementwise.where
    condition, x = draw.booleans(5, 65), draw.normal(5, 65)
    put, zeros = bench.put, np.zeros((5, 65), np.float32)
    for value in (np.nan, np.inf, -np.inf):
        bad = draw.of(np.where(condition.host, value, x.host))
        good = draw.of(np.where(condition.host, x.host, value))
        bench.exact("0 where bad", where(put(condition), 0.0, put(bad)), np.where(condition.host, 0, x.host), "float32")
        bench.exact(
            "bad elsewhere", where(put(condition), put(good), 0.0), np.where(condition.host, x.host, 0), "float32"
        )
        bench.exact("0 or 0", where(put(condition), put(draw.of(zeros)), 0.0), zeros, "float32")


def _conjunctions() -> Iterator[Case]:
    for a, b in (((), ()), ((65,), (65,)), ((3, 1), (1, 4)), ((5, 7), (7,)), ((0, 3), (3,)), ((20_001,), (20_001,))):

        def call(draw: Draw, a: Shape = a, b: Shape = b) -> Call:
            return Call("elementwise", "logical_and", (draw.booleans(*a), draw.booleans(*b)))

        words = variant(a, "bool") if a == b else f"{sizes(a)}_{variant(b, 'bool')}"
        yield _case("logical_and", words, call, "bool")

    def viewed(draw: Draw) -> Call:
        return Call(
            "elementwise",
            "logical_and",
            (draw.booleans(6, 34, view="transposed"), draw.booleans(6, 34, view="strided")),
        )

    yield _case("logical_and", "6x34-transposed-strided-b", viewed, "bool")


def _with_itself(bench: Bench) -> None:
    """One array as both operands."""
    given = bench.draw.normal(5, 65)
    x, ops = bench.put(given), bench.tools.elementwise
    host: Host = given.host
    bench.exact("x + x", ops.add(x, x), host + host, "float32")
    bench.exact("x - x", ops.subtract(x, x), host - host, "float32")
    bench.exact("x == x", ops.equal(x, x), np.full(host.shape, True), "bool")
    bench.exact("x < x", ops.less(x, x), np.full(host.shape, False), "bool")
    bench.close("x * x", ops.multiply(x, x), given.exact**2)
