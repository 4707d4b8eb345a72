"""How far a right result may be from the truth: one table, from the number format and the case, never from a backend.

docs/explanation/tolerances.md tells where each number comes from.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from turret.spi import DType

Array = npt.NDArray[Any]


@dataclass(frozen=True, slots=True)
class Format:
    """A binary floating-point format: digits of the significand, greatest value, least normal value."""

    digits: int
    greatest: float
    normal: float

    @property
    def unit(self) -> float:
        """Unit roundoff: the relative error of one rounding to nearest."""
        return math.ldexp(1.0, -self.digits)

    @property
    def spacing(self) -> float:
        """Distance of two subnormal numbers."""
        return self.normal * 2 * self.unit


FORMATS: dict[DType, Format] = {
    "float64": Format(53, float(np.finfo(np.float64).max), float(np.finfo(np.float64).tiny)),
    "float32": Format(24, float(np.finfo(np.float32).max), float(np.finfo(np.float32).tiny)),
    "float16": Format(11, 65504.0, math.ldexp(1.0, -14)),
    "bfloat16": Format(8, math.ldexp(2 - 2**-7, 127), math.ldexp(1.0, -126)),
}

COMPUTED_IN: dict[DType, DType] = {
    "float64": "float64",
    "float32": "float32",
    "float16": "float32",
    "bfloat16": "float32",
}

ROUNDINGS: dict[str, float] = {
    "add": 1,
    "subtract": 1,
    "multiply": 1,
    "square": 1,
    "divide": 3,
    "sqrt": 3,
    "exp": 8,
    "log": 8,
    "tanh": 10,
    "erf (vectorized)": 16,
}
"""Unit roundoffs that one operation may add: correct rounding for + - *, what libraries promise for the rest."""

REFORMULATION = 4.0
"""Unit roundoffs of the result itself that another order of the same few operations may add."""

CONFIDENCE = 5.0


def growth(terms: int) -> float:
    """Unit roundoffs that a sum of `terms` products may add, relative to the sum of their magnitudes.

    min(n, c sqrt n): the worst case, and where it is smaller the bound that holds with probability
    1 - 2 exp(-c^2 / 2) for roundings that are independent. Source: Higham and Mary 2019, theorem 2.4.
    """
    return min(float(terms), CONFIDENCE * math.sqrt(terms))


WHOLE_MODEL = 2.0
"""How many times as far from the truth a model may be as the truth itself moved when its weights were shaken once."""


def shake(terms: int, dtype: DType = "float32") -> float:
    """The relative change of a weight that stands for the rounding of a layer which sums up to `terms` products.

    Running error bounds grow by a factor of ten and more with every layer and say nothing about a whole model. Each
    layer by itself is backward stable: what it computes is exact for weights that are off by growth(terms) unit
    roundoffs. So the truth at such weights is as far from the truth as a right result may be. Source: Higham 2002,
    sections 1.5 and 3.5.
    """
    return growth(terms) * FORMATS[COMPUTED_IN[dtype]].unit


def budget(value: Array, error: Array, dtype: DType, *, flushes: bool) -> Array:
    """The allowed distance per element: arithmetic, the rounding of the result to `dtype`, and underflow."""
    form = FORMATS[dtype]
    narrowing = 0.0 if COMPUTED_IN[dtype] == dtype else form.unit
    floor = form.normal if flushes else form.spacing
    # float64 results are compared with float64 truth, which was rounded as well
    own = FORMATS["float64"].unit * 4 if dtype == "float64" else 0.0
    with np.errstate(all="ignore"):
        return np.asarray(error + (narrowing + own) * np.abs(np.nan_to_num(value)) + floor)


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """One comparison: the largest part of the budget that was used, the element that used it, how many are beyond."""

    used: float
    worst: tuple[int, ...]
    got: float
    want: float
    allowed: float
    off: int = 0

    @property
    def good(self) -> bool:
        return self.used <= 1.0


def compare(got: Array, want: Array, allowed: Array, dtype: DType) -> Verdict:
    """`got` beside the float64 truth `want` with an absolute budget per element; equal shapes.

    NaN matches NaN alone, an infinity itself alone. A truth that `dtype` cannot hold is infinite there, unless
    the budget reaches back into its range.
    """
    if not want.size:
        return Verdict(used=0.0, worst=(), got=0.0, want=0.0, allowed=0.0)
    wide = got.astype(np.float64)
    with np.errstate(all="ignore"):
        form = FORMATS[dtype]
        beyond = np.abs(want) - allowed > form.greatest * (1 + form.unit)
        truth = np.where(beyond, np.copysign(np.inf, want), want)
        distance = np.abs(wide - truth)
        used = np.where(allowed > 0, distance / np.where(allowed > 0, allowed, 1.0), np.inf)
        same = (wide == truth) | (np.isnan(wide) & np.isnan(truth))
        used = np.where(same, 0.0, np.where(np.isfinite(wide) & np.isfinite(truth), used, np.inf))
        edge = np.isinf(wide) & (np.abs(want) + allowed >= form.greatest) & (np.sign(wide) == np.sign(want))
        used = np.where(edge, 0.0, used)
    worst = tuple(int(i) for i in np.unravel_index(int(np.argmax(used)), used.shape))
    return Verdict(
        used=float(used[worst]),
        worst=worst,
        got=float(wide[worst]),
        want=float(truth[worst]),
        allowed=float(np.asarray(allowed)[worst]),
        off=int(np.sum(used > 1.0)),
    )
