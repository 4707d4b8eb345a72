"""Arrays that carry a bound on the rounding error a careful implementation may have made so far.

The oracles are plain NumPy. Given float64 arrays they compute the truth; given tracked arrays they compute, by the same
lines, how far float32 arithmetic may be from it: so the tolerance of a case follows from its own sizes and values. The
rules are those of running error analysis (Wilkinson 1963, section 1.13; Higham 2002, section 3.3), first order.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from turret.spi import DType

from .oracle.special import ERF
from .tolerances import COMPUTED_IN, FORMATS, REFORMULATION, ROUNDINGS, budget, growth

Array = npt.NDArray[Any]
Axis = int | tuple[int, ...] | None


class Tracked:
    """float64 `value` and a bound `error` >= 0 of the same shape; `unit` is the unit roundoff of the arithmetic."""

    def __init__(self, value: Any, error: Any, unit: float) -> None:
        self.value: Array = np.asarray(value, np.float64)
        # inf - inf and 0 * inf say nothing about rounding: what is not finite is compared exactly
        self.error: Array = np.broadcast_to(np.nan_to_num(error, nan=0.0, posinf=np.inf), self.value.shape)
        self.unit = unit

    @property
    def shape(self) -> tuple[int, ...]:
        return self.value.shape

    @property
    def ndim(self) -> int:
        return self.value.ndim

    @property
    def size(self) -> int:
        return self.value.size

    @property
    def T(self) -> Tracked:
        return self._moved(lambda x: x.T)

    def _moved(self, move: Callable[[Array], Array]) -> Tracked:
        return Tracked(move(self.value), move(self.error), self.unit)

    def rounded(self, unit: float) -> Tracked:
        """The same after one more rounding, to a format of that unit roundoff."""
        return Tracked(self.value, self.error + unit * np.abs(self.value), self.unit)

    def __len__(self) -> int:
        return len(self.value)

    def __getitem__(self, key: Any) -> Tracked:
        return self._moved(lambda x: x[key])

    def reshape(self, *shape: Any) -> Tracked:
        return self._moved(lambda x: x.reshape(*shape))

    def transpose(self, *axes: Any) -> Tracked:
        return self._moved(lambda x: x.transpose(*axes))

    def swapaxes(self, a: int, b: int) -> Tracked:
        return self._moved(lambda x: x.swapaxes(a, b))

    def copy(self) -> Tracked:
        return self._moved(lambda x: x.copy())

    def astype(self, dtype: Any) -> Tracked:
        if np.dtype(dtype) != np.float64:
            raise TypeError(f"a tracked array is float64 and got astype({dtype})")
        return self

    def sum(self, axis: Axis = None, *, keepdims: bool = False) -> Tracked:
        count = self.value.size // max(1, np.sum(self.value, axis=axis).size)
        error = np.sum(self.error, axis=axis, keepdims=keepdims)
        spread = np.sum(np.abs(self.value), axis=axis, keepdims=keepdims)
        value = np.sum(self.value, axis=axis, keepdims=keepdims)
        return Tracked(value, error + growth(count) * self.unit * spread, self.unit)

    def mean(self, axis: Axis = None, *, keepdims: bool = False) -> Tracked:
        total = self.sum(axis, keepdims=keepdims)
        count = self.value.size // max(1, total.value.size)
        return total / float(count)

    def max(self, axis: Axis = None, *, keepdims: bool = False) -> Tracked:
        fold = {"axis": axis, "keepdims": keepdims}
        return Tracked(np.max(self.value, **fold), np.max(self.error, **fold), self.unit)  # type: ignore[call-overload]

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **options: Any) -> Any:
        if method != "__call__" or options:
            return NotImplemented
        if ufunc in VALUES_ONLY:
            return ufunc(*(x.value if isinstance(x, Tracked) else x for x in inputs))
        if ufunc not in RULES:
            return NotImplemented
        operands = [x if isinstance(x, Tracked) else _constant(x, self.unit) for x in inputs]
        with np.errstate(all="ignore"):
            value = np.asarray(ufunc(*(x.value for x in operands)), np.float64)
            error = RULES[ufunc](value, *operands)
            rounding = ROUNDINGS.get(getattr(ufunc, "__name__", ""), 0.0)
            return Tracked(value, error + rounding * self.unit * np.abs(value), self.unit)

    def __array_function__(self, function: Any, types: Any, arguments: Any, options: Any) -> Any:
        if function in FOLDS:
            first, *rest = arguments
            return getattr(first, FOLDS[function])(*rest, **options)
        if function not in MOVES:
            return NotImplemented
        choice = function is np.where
        value = function(*_parts(arguments, "value", choice), **options)
        exact = {key: 0.0 if key == "constant_values" else option for key, option in options.items()}
        return Tracked(value, function(*_parts(arguments, "error", choice), **exact), self.unit)

    def __add__(self, other: Any) -> Tracked:
        return np.add(self, other)  # type: ignore[no-any-return,call-overload]

    def __radd__(self, other: Any) -> Tracked:
        return np.add(other, self)  # type: ignore[no-any-return,call-overload]

    def __sub__(self, other: Any) -> Tracked:
        return np.subtract(self, other)  # type: ignore[no-any-return,call-overload]

    def __rsub__(self, other: Any) -> Tracked:
        return np.subtract(other, self)  # type: ignore[no-any-return,call-overload]

    def __mul__(self, other: Any) -> Tracked:
        return np.multiply(self, other)  # type: ignore[no-any-return,call-overload]

    def __rmul__(self, other: Any) -> Tracked:
        return np.multiply(other, self)  # type: ignore[no-any-return,call-overload]

    def __truediv__(self, other: Any) -> Tracked:
        return np.divide(self, other)  # type: ignore[no-any-return,call-overload]

    def __rtruediv__(self, other: Any) -> Tracked:
        return np.divide(other, self)  # type: ignore[no-any-return,call-overload]

    def __matmul__(self, other: Any) -> Tracked:
        return np.matmul(self, other)  # type: ignore[no-any-return,call-overload]

    def __rmatmul__(self, other: Any) -> Tracked:
        return np.matmul(other, self)  # type: ignore[no-any-return,call-overload]

    def __neg__(self) -> Tracked:
        return Tracked(-self.value, self.error, self.unit)

    def __pow__(self, power: int) -> Tracked:
        if power != 2:
            raise TypeError(f"a tracked array is squared only, got power {power}")
        return self * self

    def __eq__(self, other: object) -> Any:
        return np.equal(self, other)  # type: ignore[call-overload]

    def __ne__(self, other: object) -> Any:
        return np.not_equal(self, other)  # type: ignore[call-overload]

    __hash__ = None  # type: ignore[assignment]

    def __lt__(self, other: Any) -> Any:
        return np.less(self, other)  # type: ignore[call-overload]

    def __le__(self, other: Any) -> Any:
        return np.less_equal(self, other)  # type: ignore[call-overload]

    def __gt__(self, other: Any) -> Any:
        return np.greater(self, other)  # type: ignore[call-overload]

    def __ge__(self, other: Any) -> Any:
        return np.greater_equal(self, other)  # type: ignore[call-overload]


def _constant(x: Any, unit: float) -> Tracked:
    """An untracked operand, which arithmetic of that unit first has to round: 0.9 is no float32, 0.5 is one."""
    value = np.asarray(x, np.float64)
    if unit < FORMATS["float32"].unit:
        return Tracked(value, 0.0, unit)
    with np.errstate(all="ignore"):
        return Tracked(value, np.abs(value - value.astype(np.float32)), unit)


def _product(value: Array, a: Tracked, b: Tracked) -> Array:
    return np.asarray(np.abs(a.value) * b.error + np.abs(b.value) * a.error + a.error * b.error)


def _quotient(value: Array, a: Tracked, b: Tracked) -> Array:
    least = np.maximum(np.abs(b.value) - b.error, np.finfo(np.float64).tiny)
    return np.asarray((a.error + np.abs(value) * b.error) / least)


def _dot(value: Array, a: Tracked, b: Tracked) -> Array:
    left, right = np.abs(a.value), np.abs(b.value)
    carried = left @ b.error + a.error @ (right + b.error)
    return np.asarray(carried + growth(a.shape[-1]) * a.unit * (left @ right))


def _greater(value: Array, a: Tracked, b: Tracked) -> Array:
    return np.maximum(a.error, b.error)


def _through(slope: Callable[[Array, Array], Array]) -> Callable[[Array, Tracked], Array]:
    """The input's error times the size of the derivative there."""
    return lambda value, x: slope(x.value, value) * x.error


RULES: dict[Any, Callable[..., Array]] = {
    np.add: lambda value, a, b: a.error + b.error,
    np.subtract: lambda value, a, b: a.error + b.error,
    np.multiply: _product,
    np.divide: _quotient,
    np.matmul: _dot,
    np.maximum: _greater,
    np.minimum: _greater,
    np.negative: lambda value, x: x.error,
    np.absolute: lambda value, x: x.error,
    np.square: lambda value, x: 2 * np.abs(x.value) * x.error,
    np.exp: lambda value, x: value * np.expm1(np.minimum(x.error, 700.0)),
    np.log: _through(lambda x, y: 1 / np.abs(x)),
    np.sqrt: _through(lambda x, y: np.where(y > 0, 0.5 / y, 0.0)),
    np.tanh: _through(lambda x, y: 1 - y * y),
    ERF: _through(lambda x, y: 2 / np.sqrt(np.pi) * np.exp(-x * x)),
}
VALUES_ONLY = {
    np.less,
    np.less_equal,
    np.greater,
    np.greater_equal,
    np.equal,
    np.not_equal,
    np.isfinite,
    np.isnan,
    np.sign,
}
FOLDS = {np.sum: "sum", np.mean: "mean", np.max: "max"}
MOVES = {
    np.where,
    np.concatenate,
    np.stack,
    np.repeat,
    np.swapaxes,
    np.transpose,
    np.reshape,
    np.broadcast_to,
    np.moveaxis,
    np.expand_dims,
    np.squeeze,
    np.pad,
    np.take,
    np.take_along_axis,
}


def _parts(arguments: Sequence[Any], which: str, choice: bool) -> list[Any]:
    """The values or the errors of all tracked arrays; an untracked array to choose from has no error."""
    parts: list[Any] = []
    for at, x in enumerate(arguments):
        if isinstance(x, Tracked):
            parts.append(getattr(x, which))
        elif isinstance(x, list | tuple) and any(isinstance(each, Tracked) for each in x):
            parts.append([_part(each, which) for each in x])
        elif choice and at > 0:
            parts.append(_part(x, which))
        else:
            parts.append(x)
    return parts


def _part(x: Any, which: str) -> Any:
    if isinstance(x, Tracked):
        return getattr(x, which)
    return x if which == "value" else np.zeros(np.shape(x))


def value_of(x: Any) -> Array:
    """The plain array inside."""
    return x.value if isinstance(x, Tracked) else np.asarray(x)


def allowance(truth: Any, dtype: DType, *, flushes: bool, reformulated: bool = True) -> Array:
    """The budget per element of a result in `dtype`: what the truth has tracked, or rounding alone.

    reformulated: the backend may compute the same in another order of operations. flushes: subnormal numbers are zero.
    """
    value = value_of(truth).astype(np.float64)
    error = truth.error if isinstance(truth, Tracked) else np.zeros(value.shape)
    if reformulated:
        error = error + REFORMULATION * FORMATS[COMPUTED_IN[dtype]].unit * np.abs(np.nan_to_num(value))
    return budget(value, error, dtype, flushes=flushes)
