"""Cases of the elementwise slot over the values where functions go wrong: ends, zeros, infinities, NaN, subnormals."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from turret.spi import DType, Host

from ..bench import Bench
from ..case import Case, call_case
from ..given import Call, Draw, rounded
from ..oracle import elementwise as oracle
from ..tolerances import FORMATS
from .naming import SHORT

BINARY = ("add", "subtract", "multiply", "divide", "maximum", "minimum", "equal", "less", "less_equal")
UNARY = ("negative", "exp", "log", "sqrt", "rsqrt", "tanh", "erf", "isfinite")
BOOLEAN = {"equal", "less", "less_equal", "isfinite"}
EXTREMES = (0.0, -0.0, 1.0, -1.0, 3.0, 1e30, -1e30, 1e-30, -1e-30, math.inf, -math.inf, math.nan)
SUBNORMAL = (1e-40, -1e-40, 2.0**-149, 1.1e-38)


def _powers(low: int, high: int) -> Host:
    """1.37 times powers of two, of both signs."""
    x = 1.37 * 2.0 ** np.arange(low, high)
    return np.concatenate([x, -x])


ACCURACY: tuple[tuple[str, str, tuple[DType, ...], Host], ...] = (
    ("exp", "wide", ("float32", "float64"), np.linspace(-86, 88.5, 500)),
    ("exp", "near-0", ("float32", "float64"), _powers(-40, 0)),
    ("exp", "overflow", ("float32", "float64"), np.array([88.7, 88.8, 89.0, 104.0, 700.0, 709.0, 710.0, 1e4, 1e30])),
    ("exp", "underflow", ("float32",), np.array([-87.0, -88.0, -95.0, -103.0, -104.5, -150.0, -1e4, -1e30])),
    ("log", "wide", ("float32", "float64"), np.abs(_powers(-125, 126))),
    ("log", "near-1", ("float32", "float64"), 1 + _powers(-20, -2)),
    ("sqrt", "wide", ("float32", "float64", "float16", "bfloat16"), np.abs(_powers(-125, 126))),
    ("rsqrt", "wide", ("float32", "float64"), np.abs(_powers(-125, 126))),
    ("rsqrt", "eps", ("float32",), np.array([1e-5, 1e-6, 1e-8, 1e-12, 1.0, 0.25, 4.0])),
    ("tanh", "near-0", ("float32", "float64"), _powers(-60, 0)),
    ("tanh", "tails", ("float32", "float64"), np.linspace(-30, 30, 121)),
    ("tanh", "far", ("float32", "float64", "float16", "bfloat16"), np.array([88.0, -88.0, 100.0, -1e4, 1e30, -1e30])),
    ("erf", "near-0", ("float32", "float64", "bfloat16"), _powers(-60, 0)),
    ("erf", "middle", ("float32", "float64"), np.linspace(-2.2, 2.2, 401)),
    ("erf", "tails", ("float32", "float64"), np.linspace(2, 7, 101) * np.tile([1.0, -1.0], 51)[:101]),
    ("erf", "far", ("float32", "float64", "float16"), np.array([8.0, -8.0, 30.0, 100.0, -1e4, 1e30, -1e30])),
)


def cases() -> Iterator[Case]:
    """All pairs of extremes, accuracy over whole ranges, NaN from either side, subnormals."""
    for dtype in ("float32", "float16", "bfloat16"):
        for name in BINARY if dtype != "bfloat16" else ("add", "maximum", "less"):
            yield _pairs(name, dtype)
        for name in UNARY if dtype != "bfloat16" else ("exp", "isfinite"):
            yield _alone(name, dtype)
    for name, where, dtypes, values in ACCURACY:
        for dtype in dtypes:
            yield _on(name, f"{where}-{SHORT[dtype]}", dtype, values)
    for name in ("maximum", "minimum"):
        for left in (True, False):
            yield _nan_beside_number(name, left=left)
            yield _nan_among_many(name, left=left)
    yield _on("isfinite", "nan-after-many-f32", "float32", np.array([1.0] * 63 + [math.nan, math.inf] + [2.0] * 40))
    for name in ("add", "multiply", "sqrt", "less", "maximum", "negative"):
        yield _subnormal(name)


def _name(name: str, words: str) -> str:
    return f"elementwise/{name.replace('_', '-')}/{words}"


def _case(name: str, words: str, call: Callable[[Draw], Call], dtype: DType) -> Case:
    """Compared as numbers, not as bits: which of two zeros wins a maximum is nobody's promise."""
    return call_case(_name(name, words), call, getattr(oracle, name), returns=("bool" if name in BOOLEAN else dtype,))


def _pairs(name: str, dtype: DType) -> Case:
    def call(draw: Draw) -> Call:
        x = np.array(EXTREMES)
        return Call("elementwise", name, (draw.of(x[:, None], dtype), draw.of(x[None, :], dtype)))

    return _case(name, f"extremes-{SHORT[dtype]}", call, dtype)


def _alone(name: str, dtype: DType) -> Case:
    # 1 / sqrt(-0) is -inf in IEEE 754, "inf at 0" in the contract: not asked
    values = np.array([x for x in EXTREMES if name != "rsqrt" or rounded(np.array(x), dtype) != 0 or not np.signbit(x)])
    return _on(name, f"extremes-{SHORT[dtype]}", dtype, values)


def _on(name: str, words: str, dtype: DType, values: Host) -> Case:
    def call(draw: Draw) -> Call:
        return Call("elementwise", name, (draw.of(values, dtype),))

    return _case(name, words, call, dtype)


def _nan_beside_number(name: str, *, left: bool) -> Case:
    """NaN wins over a Python number, and is a Python number that wins."""

    def body(bench: Bench) -> None:
        function = getattr(bench.tools.elementwise, name)
        x = bench.put(bench.draw.of([1.0, math.nan, -math.inf, math.inf]))
        for number in (0.5, math.nan, math.inf):
            with np.errstate(invalid="ignore"):
                want = getattr(np, name)(np.array([1, np.nan, -np.inf, np.inf]), number).astype(np.float32)
            bench.exact(f"beside {number}", function(number, x) if left else function(x, number), want, "float32")

    words = f"nan-number-{'left' if left else 'right'}-f32"
    return Case(id=_name(name, words), body=body, kind="forward")


def _nan_among_many(name: str, *, left: bool) -> Case:
    """At the places where vectors end."""

    def call(draw: Draw) -> Call:
        x, y = (draw.rng.standard_normal((3, 1001)) for _ in range(2))
        (x if left else y)[:, [0, 7, 8, 15, 16, 500, 999, 1000]] = math.nan
        return Call("elementwise", name, (draw.of(x), draw.of(y)))

    return _case(name, f"nan-{'left' if left else 'right'}-3x1001-f32", call, "float32")


def _subnormal(name: str) -> Case:
    """Exact where the device keeps subnormals; where it says that it flushes, operands and results may be zero."""

    def body(bench: Bench) -> None:
        draw, truth = bench.draw, getattr(oracle, name)
        x = draw.of(np.abs(SUBNORMAL) if name == "sqrt" else np.array(SUBNORMAL))
        others = [] if name in ("sqrt", "negative") else [draw.of(np.array([[0.0], [0.5], [-1.0], [1e-38]]))]
        result = getattr(bench.tools.elementwise, name)(bench.put(x), *(bench.put(y) for y in others))
        want = truth(x.exact, *(y.exact for y in others))
        dtype: DType = "bool" if name == "less" else "float32"
        if not bench.device.flushes_subnormals:
            if dtype == "bool":
                bench.exact("result", result, want, dtype)
            else:
                bench.close("result", result, want, reformulated=name == "sqrt")
            return
        got = bench.get(result).astype(np.float64)
        flushed = truth(_flushed(x.exact), *(_flushed(y.exact) for y in others))
        slack: Any = 4 * FORMATS["float32"].unit * np.abs(want) + FORMATS["float32"].normal * (dtype != "bool")
        near = (np.abs(got - want) <= slack) | (np.abs(got - flushed) <= slack)
        bench.require(np.all(near), f"got {got!r}, wanted {want!r} or, with operands flushed, {flushed!r}")

    return Case(id=_name(name, "subnormal-f32"), body=body, kind="forward")


def _flushed(x: Host) -> Host:
    return np.where(np.abs(x) < FORMATS["float32"].normal, 0.0, x)
