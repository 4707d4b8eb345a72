"""Cases of the activation slot."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from turret.spi import HALVES, DType, Host, Shape

from ..case import Case, call_case
from ..given import Call, Draw, Given, Slope
from ..oracle import activation as oracle
from .naming import variant
from .views import WHOLE, Views, cut_out, of, rotated

if TYPE_CHECKING:
    from ..bench import Bench

SHAPES: tuple[Shape, ...] = ((1,), (2, 3, 1000), (0, 4))
NARROW: tuple[DType, ...] = ("float16", "bfloat16", "float64")
WIDE: tuple[DType, ...] = ("float32",)

ORDINARY = (0.0, -0.0, 1e-30, -1e-30, 1e-38, -1e-42, 0.5, -0.7, 3.0, -3.0, 12.0, -12.0, 40.0, -40.0)
# What a sigmoid in float32 leaves between -87 and -104 depends on subnormal numbers, so nothing lies there.
SATURATED: dict[DType, tuple[float, ...]] = {
    "float32": (200.0, -200.0, 1e4, -1e4, 1e30, -1e30, 3e38, -3e38),
    "float16": (200.0, -200.0, 1e3, -1e3, 65504.0, -65504.0),
}
NOT_NUMBERS = (1.0, np.nan, -2.0, np.nan, 0.5)


@dataclass(frozen=True, slots=True)
class Form:
    """One function of the slot. operands: what it takes; the VJP takes dy before them and gives as many."""

    check: str
    method: str
    options: dict[str, object]
    operands: tuple[str, ...] = ("x",)

    @property
    def forward(self) -> Callable[..., Any]:
        return getattr(oracle, self.method)  # type: ignore[no-any-return]

    @property
    def vjp(self) -> Callable[..., Any]:
        return getattr(oracle, f"{self.method}_vjp")  # type: ignore[no-any-return]

    def call(self, *arrays: Given) -> Call:
        return Call("activation", self.method, arrays, self.options)

    def call_vjp(self, dy: Given, *arrays: Given, slope: bool = False) -> Call:
        points = tuple(x.exact for x in arrays)
        along = Slope(lambda *values: self.forward(*values, **self.options), points, dy.exact) if slope else None
        return Call("activation", f"{self.method}_vjp", (dy, *arrays), self.options, slope=along)


FORMS = (
    Form("gelu-erf", "gelu", {"form": "erf"}),
    Form("gelu-tanh", "gelu", {"form": "tanh"}),
    Form("silu", "silu", {}),
    Form("gated-silu", "gated_silu", {}, operands=("gate", "up")),
)


def cases() -> Iterator[Case]:
    """GELU in both forms, SiLU, gated SiLU: values, gradients, views, dtypes, extremes, what is not a number."""
    for form in FORMS:
        yield _forward(form, (5, 65))
        for shape in SHAPES:
            yield _forward(form, shape)
            yield _backward(form, shape)
        for dtype in NARROW:
            yield _forward(form, (5, 65), dtype)
            yield _backward(form, (5, 65), dtype)
        for views in rotated(*form.operands):
            yield _forward(form, (6, 34), views=views)
        for views in rotated("dy", *form.operands)[:2]:
            yield _backward(form, (6, 34), views=views)
        yield from _cut_out(form)
        yield from _at(form, "ordinary", ORDINARY)
        yield from _at(form, "nan", NOT_NUMBERS)
        for dtype in SATURATED if form.check == "gelu-tanh" else WIDE:
            yield _saturated(form, dtype)
            yield _saturated_vjp(form, dtype)
        yield _infinite(form)
        yield _infinite_vjp(form)
    yield _gated_extremes()


def _forward(form: Form, shape: Shape, dtype: DType = "float32", views: Views = WHOLE) -> Case:
    def build(draw: Draw) -> Call:
        return form.call(*_drawn(draw, form.operands, shape, dtype, views))

    return call_case(f"activation/{form.check}/{variant(shape, dtype, views=views)}", build, form.forward)


def _backward(form: Form, shape: Shape, dtype: DType = "float32", views: Views = WHOLE) -> Case:
    def build(draw: Draw) -> Call:
        arrays = _drawn(draw, ("dy", *form.operands), shape, dtype, views)
        return form.call_vjp(*arrays, slope=dtype not in HALVES)

    return call_case(f"activation/{form.check}-vjp/{variant(shape, dtype, views=views)}", build, form.vjp, kind="vjp")


def _drawn(draw: Draw, operands: tuple[str, ...], shape: Shape, dtype: DType, views: Views) -> list[Given]:
    return [draw.normal(*shape, dtype=dtype, scale=2.0, view=of(views, operand)) for operand in operands]


def _cut_out(form: Form) -> Iterator[Case]:
    """As gate and up are where one product made them together."""

    def build(draw: Draw) -> Call:
        return form.call(*_drawn(draw, form.operands, (2, 4, 35), "float32", WHOLE))

    def build_vjp(draw: Draw) -> Call:
        return form.call_vjp(*_drawn(draw, ("dy", *form.operands), (2, 4, 35), "float32", WHOLE))

    yield cut_out(f"activation/{form.check}", build, form.forward)
    yield cut_out(f"activation/{form.check}-vjp", build_vjp, form.vjp, kind="vjp")


def _at(form: Form, word: str, values: tuple[float, ...]) -> Iterator[Case]:
    """The function at the values, with ordinary numbers for what else it takes."""
    shape = (len(values),)

    def build(draw: Draw) -> Call:
        return form.call(draw.of(values), *(draw.normal(*shape) for _ in form.operands[1:]))

    def build_vjp(draw: Draw) -> Call:
        dy = draw.normal(*shape)
        if word == "nan":
            dy = draw.of(np.where(np.arange(len(values)) == 0, np.nan, dy.host))
        return form.call_vjp(dy, draw.of(values), *(draw.normal(*shape) for _ in form.operands[1:]))

    yield call_case(f"activation/{form.check}/{variant(shape, 'float32', word)}", build, form.forward)
    yield call_case(f"activation/{form.check}-vjp/{variant(shape, 'float32', word)}", build_vjp, form.vjp, kind="vjp")


def _saturated(form: Form, dtype: DType) -> Case:
    """So far out that the gate is 0 or 1 whatever the formula: the value is x or 0."""

    def body(bench: Bench) -> None:
        x = bench.draw.of(SATURATED[dtype], dtype)
        others = [bench.draw.normal(*x.shape, dtype=dtype) for _ in form.operands[1:]]
        want = np.maximum(x.exact, 0.0)
        for other in others:
            want = want * other.exact
        bench.close("result", bench.call(form.call(x, *others)), want, dtype)

    shape = (len(SATURATED[dtype]),)
    return Case(id=f"activation/{form.check}/{variant(shape, dtype, 'saturated')}", body=body, kind="forward")


def _saturated_vjp(form: Form, dtype: DType) -> Case:
    """There the slope is 1 or 0, and no intermediate infinity may turn it into NaN."""

    def body(bench: Bench) -> None:
        x = bench.draw.of(SATURATED[dtype], dtype)
        dy = bench.draw.normal(*x.shape, dtype=dtype)
        if len(form.operands) == 1:
            dx = bench.call(form.call_vjp(dy, x))
        else:
            up = bench.draw.normal(*x.shape, dtype=dtype)
            dx, dup = bench.call(form.call_vjp(dy, x, up))
            bench.close("dup", dup, dy.exact * np.maximum(x.exact, 0.0), dtype)
            dy = Given(dy.exact * up.exact, "float64")
        bench.close("dx", dx, np.where(x.exact > 0, dy.exact, 0.0), dtype)

    shape = (len(SATURATED[dtype]),)
    return Case(id=f"activation/{form.check}-vjp/{variant(shape, dtype, 'saturated')}", body=body, kind="vjp")


def _infinite(form: Form) -> Case:
    """Infinity stays. At -inf the product of -inf and 0 may be its limit or NaN, but no other number."""

    def body(bench: Bench) -> None:
        x = bench.draw.of([np.inf, 1.0, -np.inf])
        got = bench.get(bench.call(form.call(x, *(bench.draw.of([2.0, 2.0, 2.0]) for _ in form.operands[1:]))))
        bench.require(np.isposinf(got[0]), f"at inf got {got[0]!r}, wanted inf")
        bench.require(np.isfinite(got[1]), f"beside infinities got {got[1]!r} at 1, wanted a finite value")
        _limit_or_nan(bench, "at -inf", got[2], 0.0)

    return Case(id=f"activation/{form.check}/{variant((3,), 'float32', 'infinite')}", body=body, kind="forward")


def _infinite_vjp(form: Form) -> Case:
    """The slopes 1 and 0 in the limit, or NaN. An infinite dy passes where the slope is ordinary."""

    def body(bench: Bench) -> None:
        dy, x = bench.draw.of([3.0, np.inf, 3.0]), bench.draw.of([np.inf, 1.0, -np.inf])
        others = [bench.draw.of([2.0, 2.0, 2.0]) for _ in form.operands[1:]]
        results = bench.call(form.call_vjp(dy, x, *others))
        got = bench.get(results[0] if others else results)
        _limit_or_nan(bench, "at inf", got[0], 6.0 if others else 3.0)
        bench.require(np.isposinf(got[1]), f"of an infinite dy at 1 got {got[1]!r}, wanted inf")
        _limit_or_nan(bench, "at -inf", got[2], 0.0)

    return Case(id=f"activation/{form.check}-vjp/{variant((3,), 'float32', 'infinite')}", body=body, kind="vjp")


def _limit_or_nan(bench: Bench, place: str, got: Any, limit: float) -> None:
    near = abs(float(got) - limit) <= 1e-5 * limit
    bench.require(np.isnan(got) or near, f"{place} got {got!r}, wanted {limit} or NaN")


def _gated_extremes() -> Case:
    """Both operands extreme: a product beyond float32 is infinite, NaN in `up` survives a closed gate."""
    gate: Host = np.array([1e30, 1e30, -1e30, 5.0, 5.0, 0.0, -300.0, 1.0, 0.0, 1e-30])
    up: Host = np.array([1e30, -1e30, 1e30, np.inf, -np.inf, np.inf, np.nan, -0.0, 1e30, 1e-20])

    def build(draw: Draw) -> Call:
        return Call("activation", "gated_silu", (draw.of(gate), draw.of(up)))

    return call_case(f"activation/gated-silu/{variant(gate.shape, 'float32', 'extreme')}", build, oracle.gated_silu)
