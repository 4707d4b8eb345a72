"""Cases of the linear slot."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from turret.spi import HALVES, DType, Host, Shape

from ..case import Case, call_case
from ..given import Call, Draw, Given, Slope
from ..oracle import linear as oracle
from ..tolerances import FORMATS
from .naming import SHORT, variant
from .views import WHOLE, Views, cut_out, of, rotated

Sizes = tuple[Shape, int, int]
"""Leading axes of x, I and O."""
SIZES: tuple[Sizes, ...] = (
    ((1,), 1, 1),
    ((), 5, 3),
    ((7,), 63, 65),
    ((33,), 33, 33),  # no axis is told from another by its size
    ((65,), 1, 130),
    ((63,), 130, 1),
    ((2, 3), 1000, 17),
    ((9, 2, 3), 33, 31),
    ((1025,), 9, 6),
    ((4,), 7, 1025),
    ((2, 0), 5, 4),
)
MORE_SIZES: tuple[Sizes, ...] = (((1,), 1000, 65), ((300,), 64, 48), ((3,), 1025, 8), ((0,), 5, 4))
WITHOUT_BIAS: tuple[Sizes, ...] = (((), 5, 3), ((2, 3), 1000, 17), ((300,), 64, 48))
NARROW: tuple[DType, ...] = ("float16", "bfloat16", "float64")
VIEWED: Sizes = ((2, 3), 34, 36)


def cases() -> Iterator[Case]:
    """The affine map with and without bias and both VJPs: sizes, views, dtypes, long sums of one sign, NaN."""
    for sizes in SIZES:
        yield _forward(sizes)
        yield _input(sizes)
        yield _weight(sizes)
    for sizes in MORE_SIZES:
        yield _forward(sizes)
    for sizes in WITHOUT_BIAS:
        yield _forward(sizes, bias=False)
    for views in rotated("x", "weight", "bias"):
        yield _forward(VIEWED, views=views)
    for views in rotated("dy", "weight"):
        yield _input(VIEWED, views=views)
    for views in rotated("dy", "x"):
        yield _weight(VIEWED, views=views)
    yield _forward(((70,), 65, 66), views={"x": "transposed", "weight": "transposed"})
    yield _weight(((70,), 65, 66), views={"x": "transposed", "dy": "transposed"})
    yield from _cut_out()
    for dtype in NARROW:
        yield _forward(((2, 3), 65, 33), dtype)
        yield _forward(((70,), 64, 66), dtype, bias=False)
        yield _input(((70,), 64, 66), dtype)
        yield _weight(((70,), 64, 66), dtype)
        yield from _one_sign(dtype)
    yield from _one_sign("float32")
    yield from _special()


def _forward(sizes: Sizes, dtype: DType = "float32", *, bias: bool = True, views: Views = WHOLE) -> Case:
    lead, ins, outs = sizes

    def build(draw: Draw) -> Call:
        x = draw.normal(*lead, ins, dtype=dtype, view=of(views, "x"))
        weight = draw.normal(outs, ins, dtype=dtype, view=of(views, "weight"))
        return Call(
            "linear", "linear", (x, weight, draw.normal(outs, dtype=dtype, view=of(views, "bias")) if bias else None)
        )

    name = _variant(sizes, dtype, "" if bias else "no-bias", views=views)
    return call_case(f"linear/linear/{name}", build, _truth(dtype))


def _truth(dtype: DType) -> Callable[..., Any]:
    """In halves the product may be stored as a half before the bias is added: one rounding more."""
    if dtype not in HALVES:
        return oracle.linear

    def linear(x: Any, weight: Any, bias: Any) -> Any:
        product = oracle.linear(x, weight, None)
        if bias is None:
            return product
        return product.rounded(FORMATS[dtype].unit) + bias

    return linear


def _input(sizes: Sizes, dtype: DType = "float32", *, views: Views = WHOLE) -> Case:
    lead, ins, outs = sizes

    def build(draw: Draw) -> Call:
        dy = draw.normal(*lead, outs, dtype=dtype, view=of(views, "dy"))
        weight = draw.normal(outs, ins, dtype=dtype, view=of(views, "weight"))
        fixed = weight.exact
        slope = _slope(lambda x: oracle.linear(x, fixed, None), dy, draw.rng.standard_normal((*lead, ins)))
        return Call("linear", "linear_vjp_input", (dy, weight), slope=slope)

    name = f"linear/input-vjp/{_variant(sizes, dtype, views=views)}"
    return call_case(name, build, oracle.linear_vjp_input, kind="vjp")


def _weight(sizes: Sizes, dtype: DType = "float32", *, views: Views = WHOLE) -> Case:
    lead, ins, outs = sizes

    def build(draw: Draw) -> Call:
        dy = draw.normal(*lead, outs, dtype=dtype, shift=0.2, view=of(views, "dy"))
        x = draw.normal(*lead, ins, dtype=dtype, view=of(views, "x"))
        fixed, points = x.exact, (draw.rng.standard_normal((outs, ins)), draw.rng.standard_normal(outs))
        slope = _slope(lambda weight, bias: oracle.linear(fixed, weight, bias), dy, *points)
        return Call("linear", "linear_vjp_weight", (dy, x), slope=slope)

    name = f"linear/weight-vjp/{_variant(sizes, dtype, views=views)}"
    return call_case(name, build, oracle.linear_vjp_weight, kind="vjp")


def _slope(function: Callable[..., Any], dy: Given, *points: Host) -> Slope | None:
    return None if dy.dtype in HALVES else Slope(function, points, dy.exact)


def _cut_out() -> Iterator[Case]:
    def forward(draw: Draw) -> Call:
        return Call("linear", "linear", (draw.normal(2, 5, 33), draw.normal(31, 33), draw.normal(31)))

    def through(draw: Draw) -> Call:
        return Call("linear", "linear_vjp_input", (draw.normal(2, 5, 31), draw.normal(31, 33)))

    def across(draw: Draw) -> Call:
        return Call("linear", "linear_vjp_weight", (draw.normal(2, 5, 31), draw.normal(2, 5, 33)))

    yield cut_out("linear/linear", forward, oracle.linear)
    yield cut_out("linear/input-vjp", through, oracle.linear_vjp_input, kind="vjp")
    yield cut_out("linear/weight-vjp", across, oracle.linear_vjp_weight, kind="vjp")


def _one_sign(dtype: DType) -> Iterator[Case]:
    """Sums of 3000 terms near 1: a sum in half precision stops growing, and products of too few bits drift."""

    def of(draw: Draw, *shape: int) -> Given:
        return draw.uniform(*shape, low=0.5, high=1.5, dtype=dtype)

    def forward(draw: Draw) -> Call:
        return Call("linear", "linear", (of(draw, 3, 3000), of(draw, 5, 3000), of(draw, 5)))

    def through(draw: Draw) -> Call:
        return Call("linear", "linear_vjp_input", (of(draw, 3, 3000), of(draw, 3000, 5)))

    def across(draw: Draw) -> Call:
        return Call("linear", "linear_vjp_weight", (of(draw, 3000, 3), of(draw, 3000, 4)))

    word = f"one-sign-{SHORT[dtype]}"
    yield call_case(f"linear/linear/{word}", forward, _truth(dtype))
    yield call_case(f"linear/input-vjp/{word}", through, oracle.linear_vjp_input, kind="vjp")
    yield call_case(f"linear/weight-vjp/{word}", across, oracle.linear_vjp_weight, kind="vjp")


def _special() -> Iterator[Case]:
    """NaN and infinities reach their row or column and nothing else; 0 times NaN is NaN; magnitudes that cancel."""

    def forward(draw: Draw) -> Call:
        x, weight, bias = (draw.rng.standard_normal(shape) for shape in ((6, 65), (9, 65), 9))
        x[1, 64], x[3, 0], x[4] = np.nan, np.inf, 0.0
        weight[8, 2], bias[5], bias[6] = np.nan, np.nan, -np.inf
        return Call("linear", "linear", (draw.of(x), draw.of(weight), draw.of(bias)))

    def through(draw: Draw) -> Call:
        dy, weight = draw.rng.standard_normal((5, 9)), draw.rng.standard_normal((9, 33))
        dy[2, 8], dy[4], weight[3, 32] = np.inf, 0.0, np.nan
        return Call("linear", "linear_vjp_input", (draw.of(dy), draw.of(weight)))

    def across(draw: Draw) -> Call:
        dy, x = draw.rng.standard_normal((70, 9)), draw.rng.standard_normal((70, 33))
        dy[69, 4], x[0, 32] = np.nan, np.inf
        return Call("linear", "linear_vjp_weight", (draw.of(dy), draw.of(x)))

    def magnitudes(draw: Draw) -> Call:
        x, weight = draw.rng.standard_normal((4, 66)), draw.rng.standard_normal((5, 66))
        scale = np.logspace(-15, 15, 66)
        return Call("linear", "linear", (draw.of(x * scale), draw.of(weight / scale), draw.normal(5, scale=3.0)))

    yield call_case("linear/linear/not-finite-f32", forward, oracle.linear)
    yield call_case("linear/input-vjp/not-finite-f32", through, oracle.linear_vjp_input, kind="vjp")
    yield call_case("linear/weight-vjp/not-finite-f32", across, oracle.linear_vjp_weight, kind="vjp")
    yield call_case("linear/linear/magnitudes-f32", magnitudes, oracle.linear)


def _variant(sizes: Sizes, dtype: DType, *words: str, views: Views) -> str:
    lead, ins, outs = sizes
    return variant((*lead, ins), dtype, f"O{outs}", *words, views=views)
