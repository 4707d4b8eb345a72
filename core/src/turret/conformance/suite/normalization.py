"""Cases of the normalization slot."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Literal

import numpy as np

from turret.spi import HALVES, DType, Host, Shape

from ..case import Case, call_case
from ..given import Call, Draw, Given, Slope
from ..oracle import normalization as oracle
from .naming import SHORT, variant
from .views import WHOLE, Views, cut_out, of, rotated

Norm = Literal["layer_norm", "rms_norm"]
NORMS: tuple[Norm, ...] = ("layer_norm", "rms_norm")
EPS = 1e-5
SHAPES: tuple[Shape, ...] = (
    (1,),
    (4, 65),
    (1, 65),
    (5, 1),
    (2, 3, 1000),
    (3, 1025),
    (3, 400, 5),
    (2, 0, 7),
)
MANY: Shape = (66000, 2)
NARROW: tuple[DType, ...] = ("float16", "bfloat16", "float64")
Values = Callable[[Draw], Host]


def cases() -> Iterator[Case]:
    """Layer norm and RMS norm: sizes, views, dtypes, means far above the spread, eps, rows that are all alike."""
    for norm in NORMS:
        for shape in SHAPES:
            yield _forward(norm, shape)
            # of one value nothing but rounding is left in dx, and rstd makes that large
            yield _backward(norm, shape, differences=shape[-1] > 1)
        yield _forward(norm, (2, 2, 3, 7))
        yield _backward(norm, (1100, 6))
        operands = ("x", "weight", "bias") if norm == "layer_norm" else ("x", "weight")
        for views in rotated(*operands):
            yield _forward(norm, (2, 3, 34), views=views)
        for views in rotated("dy", "x", "weight", "statistics"):
            # repeated statistics are not those of x, so that the gradient is no slope
            yield _backward(norm, (2, 3, 34), views=views, differences=of(views, "statistics") != "repeated")
        yield from _cut_out(norm)
        yield from _narrow(norm)
        for word, (values, eps) in ROWS.items():
            yield _forward_at(norm, word, values, eps)
        for word in WITH_GRADIENT:
            values, eps = ROWS[word]
            # the step of a difference follows the largest operand: too coarse for rows that spread by 1e-3 or less
            yield _backward_at(norm, word, values, eps, differences=word == "mean-10")
        yield _not_a_number(norm)
        yield _not_a_number_vjp(norm)
    yield _forward("layer_norm", MANY)


def _cut_out(norm: Norm) -> Iterator[Case]:
    def build(draw: Draw) -> Call:
        return _call(draw, norm, _spread(draw, (2, 4, 35)), "float32", EPS, WHOLE)

    def build_vjp(draw: Draw) -> Call:
        return _call_vjp(draw, norm, _spread(draw, (2, 4, 35)), "float32", EPS, WHOLE)

    yield cut_out(f"normalization/{_check(norm)}", build, _truth(norm))
    yield cut_out(f"normalization/{_check(norm)}-vjp", build_vjp, _truth_vjp(norm), kind="vjp")


def _narrow(norm: Norm) -> Iterator[Case]:
    for dtype in NARROW:
        yield _forward(norm, (5, 65), dtype)
        yield _backward(norm, (5, 65), dtype)
        # squares beyond float16, sums and means beyond what a half can count
        yield _forward_at(norm, "large-mean", lambda draw: draw.rng.uniform(280.0, 320.0, (3, 1000)), EPS, dtype)
        yield _backward_at(
            norm, "many-rows", lambda draw: draw.rng.standard_normal((3000, 4)), EPS, dtype, low=0.5, differences=False
        )


def _rows_apart(draw: Draw) -> Host:
    x: Host = draw.rng.standard_normal((5, 65)) * np.array([[1e-3], [1.0], [1e6], [1e-6], [30.0]])
    return x


def _spread_above(mean: float) -> Values:
    """A spread of 1 around a mean far from 0, by sign and by row."""
    return lambda draw: draw.rng.standard_normal((5, 16)) + mean * np.array([[1.0], [-1.0], [0.5], [2.0], [1.0]])


def _alike(draw: Draw) -> Host:
    return np.repeat([[3.0], [-0.5], [0.0], [1.0]], 65, axis=1)


def _tiny(draw: Draw) -> Host:
    return draw.rng.standard_normal((4, 65)) * 1e-3


ROWS: dict[str, tuple[Values, float]] = {
    "mean-10": (_spread_above(10.0), EPS),
    "mean-1e4": (_spread_above(1e4), EPS),
    "tiny-eps1e-5": (_tiny, 1e-5),
    "tiny-eps1e-3": (_tiny, 1e-3),
    "alike": (_alike, EPS),
    "zeros": (lambda draw: np.zeros((3, 65)), 1e-6),
    "large": (lambda draw: draw.rng.standard_normal((3, 65)) * 1e15, EPS),
    "rows-apart": (_rows_apart, EPS),
    "two": (lambda draw: draw.rng.standard_normal((4, 2)), 0.1),
}
WITH_GRADIENT = ("mean-10", "tiny-eps1e-5", "alike", "zeros", "rows-apart")


def _inputs(draw: Draw, norm: Norm, values: Host, dtype: DType, views: Views) -> tuple[Given, Given, tuple[Given, ...]]:
    """x, weight far from 1, and in layer norm a bias that is larger than what it is added to."""
    d = values.shape[-1]
    x = draw.of(values, dtype, of(views, "x"))
    weight = draw.normal(d, dtype=dtype, scale=5.0, shift=-3.0, view=of(views, "weight"))
    if norm == "rms_norm":
        return x, weight, ()
    return x, weight, (draw.normal(d, dtype=dtype, scale=20.0, shift=10.0, view=of(views, "bias")),)


def _call(draw: Draw, norm: Norm, values: Host, dtype: DType, eps: float, views: Views) -> Call:
    x, weight, bias = _inputs(draw, norm, values, dtype, views)
    return Call("normalization", norm, (x, weight, *bias), {"eps": eps})


def _call_vjp(
    draw: Draw,
    norm: Norm,
    values: Host,
    dtype: DType,
    eps: float,
    views: Views,
    *,
    low: float | None = None,
    differences: bool = True,
) -> Call:
    """low: gradients of one sign, from `low` to three times as much."""
    x, weight, bias = _inputs(draw, norm, values, dtype, views)
    ones = (weight.exact, *(each.exact for each in bias))
    _, *statistics = _truth(norm)(x.exact, *ones, eps=eps)
    stored = [draw.of(each, _statistics(dtype), of(views, "statistics")) for each in statistics]
    view = of(views, "dy")
    if low is None:
        dy = draw.normal(*values.shape, dtype=dtype, shift=0.3, view=view)
    else:
        dy = draw.uniform(*values.shape, low=low, high=3 * low, dtype=dtype, view=view)
    slope = None
    if differences and dtype not in HALVES:
        slope = Slope(lambda *points: _truth(norm)(*points, eps=eps)[0], (x.exact, *ones), dy.exact)
    return Call("normalization", f"{norm}_vjp", (dy, x, weight, *stored), slope=slope)


def _truth(norm: Norm) -> Callable[..., Any]:
    return oracle.layer_norm if norm == "layer_norm" else oracle.rms_norm


def _truth_vjp(norm: Norm) -> Callable[..., Any]:
    return oracle.layer_norm_vjp if norm == "layer_norm" else oracle.rms_norm_vjp


def _statistics(dtype: DType) -> DType:
    return "float64" if dtype == "float64" else "float32"


def _forward_case(norm: Norm, name: str, build: Callable[[Draw], Call], dtype: DType) -> Case:
    kept = _statistics(dtype)
    returns = (dtype, kept, kept) if norm == "layer_norm" else (dtype, kept)
    return call_case(f"normalization/{_check(norm)}/{name}", build, _truth(norm), returns=returns)


def _backward_case(norm: Norm, name: str, build: Callable[[Draw], Call]) -> Case:
    return call_case(f"normalization/{_check(norm)}-vjp/{name}", build, _truth_vjp(norm), kind="vjp")


def _check(norm: Norm) -> str:
    return norm.replace("_", "-")


def _spread(draw: Draw, shape: Shape) -> Host:
    return draw.rng.standard_normal(shape) * 2.0 + 0.7


def _forward(norm: Norm, shape: Shape, dtype: DType = "float32", views: Views = WHOLE) -> Case:
    def build(draw: Draw) -> Call:
        return _call(draw, norm, _spread(draw, shape), dtype, EPS, views)

    return _forward_case(norm, variant(shape, dtype, views=views), build, dtype)


def _backward(
    norm: Norm, shape: Shape, dtype: DType = "float32", views: Views = WHOLE, *, differences: bool = True
) -> Case:
    def build(draw: Draw) -> Call:
        return _call_vjp(draw, norm, _spread(draw, shape), dtype, EPS, views, differences=differences)

    return _backward_case(norm, variant(shape, dtype, views=views), build)


def _forward_at(norm: Norm, word: str, values: Values, eps: float, dtype: DType = "float32") -> Case:
    def build(draw: Draw) -> Call:
        return _call(draw, norm, values(draw), dtype, eps, WHOLE)

    return _forward_case(norm, f"{word}-{SHORT[dtype]}", build, dtype)


def _backward_at(
    norm: Norm,
    word: str,
    values: Values,
    eps: float,
    dtype: DType = "float32",
    *,
    low: float | None = None,
    differences: bool = True,
) -> Case:
    def build(draw: Draw) -> Call:
        return _call_vjp(draw, norm, values(draw), dtype, eps, WHOLE, low=low, differences=differences)

    return _backward_case(norm, f"{word}-{SHORT[dtype]}", build)


def _not_a_number(norm: Norm) -> Case:
    """NaN fills its own row and its own column of the weight, and the rows beside it stay."""

    def build(draw: Draw) -> Call:
        values = _spread(draw, (4, 65))
        values[1, 64] = np.nan
        x, weight, bias = _inputs(draw, norm, values, "float32", WHOLE)
        spoilt = draw.of(np.where(np.arange(65) == 3, np.nan, weight.host))
        return Call("normalization", norm, (x, spoilt, *bias), {"eps": EPS})

    return _forward_case(norm, variant((4, 65), "float32", "nan"), build, "float32")


def _not_a_number_vjp(norm: Norm) -> Case:
    """NaN in dy fills its row of dx and its column of the sums."""

    def build(draw: Draw) -> Call:
        call = _call_vjp(draw, norm, _spread(draw, (4, 65)), "float32", EPS, WHOLE, differences=False)
        dy, *rest = call.arguments
        assert isinstance(dy, Given)
        values = dy.exact
        values[2, 0] = np.nan
        return Call("normalization", f"{norm}_vjp", (draw.of(values), *rest))

    return _backward_case(norm, variant((4, 65), "float32", "nan"), build)
