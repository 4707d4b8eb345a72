"""Cases of the softmax slot."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import numpy as np

from turret.spi import HALVES, DType, Host, Shape

from ..case import Case, call_case
from ..given import Call, Draw, Slope
from ..oracle import softmax as oracle
from .naming import SHORT, variant
from .views import WHOLE, Views, cut_out, of, rotated

if TYPE_CHECKING:
    from ..bench import Bench

SHAPES: tuple[Shape, ...] = ((4, 65), (3, 1), (2, 3, 1000), (3, 1025), (2, 0, 3))
MORE_SHAPES: tuple[Shape, ...] = ((1,), (63,), (2, 2, 3, 7))
MANY: Shape = (66000, 2)
"""More rows than a grid of 16 bits has places."""
NARROW: tuple[tuple[DType, int], ...] = (("float16", 4099), ("bfloat16", 1000), ("float64", 1000))
FUNCTIONS = {"softmax": oracle.softmax, "log_softmax": oracle.log_softmax}
GRADIENTS = {"softmax": oracle.softmax_vjp, "log_softmax": oracle.log_softmax_vjp}
Values = Callable[[Draw], Host]


def cases() -> Iterator[Case]:
    """Softmax and log-softmax: sizes, views, dtypes, rows that overflow without the shift, masked rows."""
    for method in FUNCTIONS:
        for shape in SHAPES:
            yield _forward(method, shape)
            yield _backward(method, shape)
        for shape in MORE_SHAPES:
            yield _forward(method, shape)
        for views in rotated("x"):
            yield _forward(method, (2, 3, 35), views=views)
        for views in rotated("dy", "y")[::2]:
            yield _backward(method, (2, 3, 35), views=views)
        for dtype, long in NARROW:
            yield _forward(method, (5, 65), dtype)
            yield _backward(method, (5, 65), dtype)
            # as many equal terms as a sum in half precision cannot count
            yield _at(method, "equal", _alike(long), dtype)
        for word, values in ROWS.items():
            yield _at(method, word, values)
        for word in WITH_GRADIENT:
            yield _at_vjp(method, word, ROWS[word])
        yield from _cut_out(method)
        yield _unspecified(method)
    yield _forward("softmax", MANY)


def _normal(draw: Draw) -> Host:
    return draw.rng.standard_normal((4, 65))


def _alike(count: int) -> Values:
    return lambda draw: np.full((2, count), 0.5)


def _dominant(draw: Draw) -> Host:
    """One entry far above the rest: first, inside, last, and just below where the rest would still show."""
    x = _normal(draw)
    for row, (at, by) in enumerate(((0, 300.0), (31, 1e5), (64, 300.0), (64, 20.0))):
        x[row, at] += by
    return x


def _one_finite(draw: Draw) -> Host:
    x = np.full((4, 65), -np.inf)
    for row, at in enumerate((0, 17, 63, 64)):
        x[row, at] = (-3.0, 0.0, 1e30, -1e30)[row]
    return x


def _masked(draw: Draw) -> Host:
    """Row i sees what lies at or before i, as under a causal mask; the last entries are hidden from all."""
    x = draw.rng.standard_normal((70, 65))
    return np.where(np.arange(65) <= np.minimum(np.arange(70), 62)[:, None], x, -np.inf)


def _far_apart(draw: Draw) -> Host:
    x = _normal(draw)
    x[0, 5], x[1, 5], x[2] = 1e30, -1e30, -1e30
    x[3] = np.where(np.arange(65) % 2, 1e30, -1e30)
    return x


# No entry lies 87 to 104 below its maximum, where exp in float32 is subnormal and may be 0.
ROWS: dict[str, Values] = {
    "above-1e4": lambda draw: _normal(draw) + 1e4,
    "below-1e4": lambda draw: _normal(draw) - 1e4,
    "wide": lambda draw: _normal(draw) * 10.0,
    "far-apart": _far_apart,
    "dominant": _dominant,
    "equal": lambda draw: np.array([[0.0] * 65, [-7.5] * 65, [1e30] * 65, [-3e38] * 65]),
    "one-finite": _one_finite,
    "masked": _masked,
    # the maximum moves at every step, up or down: a running maximum has to rescale what it has summed
    "ascending": lambda draw: np.stack([np.linspace(-40.0, 40.0, 2050), np.linspace(40.0, -40.0, 2050)]),
    "scales": lambda draw: _normal(draw) * np.array([[1e-6], [1e-3], [5.0], [1e8]]),
}
WITH_GRADIENT = ("wide", "dominant", "equal", "one-finite", "masked")


def _forward(method: str, shape: Shape, dtype: DType = "float32", views: Views = WHOLE) -> Case:
    def build(draw: Draw) -> Call:
        return Call("softmax", method, (draw.normal(*shape, dtype=dtype, scale=2.0, view=of(views, "x")),))

    return call_case(f"softmax/{_check(method)}/{variant(shape, dtype, views=views)}", build, FUNCTIONS[method])


def _backward(method: str, shape: Shape, dtype: DType = "float32", views: Views = WHOLE) -> Case:
    def build(draw: Draw) -> Call:
        x = draw.normal(*shape, dtype=dtype, scale=2.0, view=of(views, "y"))
        dy = draw.normal(*shape, dtype=dtype, shift=0.5, view=of(views, "dy"))
        y = draw.of(FUNCTIONS[method](x.exact), dtype, x.view)
        slope = None if dtype in HALVES else Slope(FUNCTIONS[method], (x.exact,), dy.exact)
        return Call("softmax", f"{method}_vjp", (dy, y), slope=slope)

    name = f"softmax/{_check(method)}-vjp/{variant(shape, dtype, views=views)}"
    return call_case(name, build, GRADIENTS[method], kind="vjp")


def _at(method: str, word: str, values: Values, dtype: DType = "float32") -> Case:
    def build(draw: Draw) -> Call:
        return Call("softmax", method, (draw.of(values(draw), dtype),))

    return call_case(f"softmax/{_check(method)}/{word}-{SHORT[dtype]}", build, FUNCTIONS[method])


def _at_vjp(method: str, word: str, values: Values) -> Case:
    """The result y is what the function gives at the values, 0 and -inf among it."""

    def build(draw: Draw) -> Call:
        y = draw.of(FUNCTIONS[method](draw.of(values(draw)).exact))
        return Call("softmax", f"{method}_vjp", (draw.normal(*y.shape, shift=0.5), y))

    name = f"softmax/{_check(method)}-vjp/{word}-f32"
    return call_case(name, build, GRADIENTS[method], kind="vjp")


def _cut_out(method: str) -> Iterator[Case]:
    def build(draw: Draw) -> Call:
        return Call("softmax", method, (draw.normal(2, 4, 35),))

    def build_vjp(draw: Draw) -> Call:
        y = draw.of(FUNCTIONS[method](draw.rng.standard_normal((2, 4, 35))))
        return Call("softmax", f"{method}_vjp", (draw.normal(2, 4, 35), y))

    yield cut_out(f"softmax/{_check(method)}", build, FUNCTIONS[method])
    yield cut_out(f"softmax/{_check(method)}-vjp", build_vjp, GRADIENTS[method], kind="vjp")


def _unspecified(method: str) -> Case:
    """Rows of NaN or with an infinite maximum may hold anything, but raise nothing and leave their neighbours alone."""

    def body(bench: Bench) -> None:
        values = bench.draw.rng.standard_normal((7, 65))
        values[1], values[3, 64], values[5, 2] = -np.inf, np.inf, np.nan
        x = bench.draw.of(values)
        result = bench.call(Call("softmax", method, (x,)))
        bench.require(tuple(result.shape) == x.shape, f"got shape {tuple(result.shape)}, wanted {x.shape}")
        between = bench.tools.layout.slice(result, (0, 0), x.shape, step=(2, 1))
        bench.close("the rows between", between, FUNCTIONS[method](x.tracked[::2]))

    return Case(id=f"softmax/{_check(method)}/{variant((7, 65), 'float32', 'unspecified')}", body=body, kind="forward")


def _check(method: str) -> str:
    return method.replace("_", "-")
