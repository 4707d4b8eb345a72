"""Element-wise operations with NumPy broadcasting; a Python number may stand for one operand."""

from __future__ import annotations

import math
from collections.abc import Callable

from turret.registry import OpenBackend
from turret.spi import FLOATS, DTypeError, Shape, ShapeError

from ..graph import Native
from ..value import RANGES, Number, Tensor, record, require_float, require_range, same_backend, same_dtype, same_floats

Operand = Tensor | Number

Pull = Callable[[Native, tuple[bool, ...]], tuple[Native | None, ...]]
"""(gradient of the output, which operands want one) -> both gradients, in the shape of the output."""


def broadcast_shape(name: str, a: Shape, b: Shape) -> Shape:
    """The shape of both together by NumPy's rule.

    Raises: ShapeError.
    """
    if a == b:
        return a
    rank = max(len(a), len(b))
    left, right = (1,) * (rank - len(a)) + a, (1,) * (rank - len(b)) + b
    for x, y in zip(left, right, strict=True):
        if x != y and x != 1 and y != 1:
            raise ShapeError(
                f"{name} got shapes {a} and {b}; wanted equal shapes, or sizes of 1 where they differ, aligned right"
            )
    return tuple(y if x == 1 else x for x, y in zip(left, right, strict=True))


def unbroadcast(backend: OpenBackend, gradient: Native, shape: Shape) -> Native:
    """The VJP of broadcasting: sums a gradient over the axes that `shape` was stretched along."""
    got = tuple(gradient.shape)
    if got == shape:
        return gradient
    extra = len(got) - len(shape)
    axes = tuple(i for i, size in enumerate(got) if i < extra or (shape[i - extra] == 1 and size != 1))
    if axes:
        gradient = backend.tools.reduction.sum(gradient, axis=axes, keepdims=True)
    return backend.tools.layout.reshape(gradient, shape)


def _operands(name: str, a: Operand, b: Operand) -> tuple[Tensor, Native | Number, Native | Number]:
    """(the operand that gives dtype and backend, both native operands)."""
    if isinstance(a, Tensor):
        if isinstance(b, Tensor):
            same_backend(name, a, b)
            same_dtype(name, a, b)
            if a.value.shape != b.value.shape:
                broadcast_shape(name, a.shape, b.shape)
            return a, a.value, b.value
        return a, a.value, _number(name, b, a)
    if isinstance(b, Tensor):
        return b, _number(name, a, b), b.value
    raise DTypeError(
        f"{name} got {type(a).__name__} and {type(b).__name__}; wanted one Tensor or two: turret.tensor(...) makes them"
    )


def _number(name: str, number: object, beside: Tensor) -> Number:
    if not isinstance(number, (int, float)):
        raise DTypeError(
            f"{name} got {type(number).__name__}; wanted a Tensor or a Python number: wrap it with turret.tensor(...)"
        )
    if beside.dtype in FLOATS:
        return float(number)
    if isinstance(number, float):
        raise DTypeError(f"{name} got the float {number} with a tensor of dtype {beside.dtype}; cast the tensor first")
    if beside.dtype in RANGES:
        require_range(name, number, beside.dtype)
    return number


def _numeric(name: str, a: Operand, b: Operand) -> tuple[Tensor, Native | Number, Native | Number]:
    """`_operands` of an operation that bools do not have."""
    found = _operands(name, a, b)
    if found[0].dtype == "bool":
        raise DTypeError(f"{name} got dtype bool; wanted numbers: cast it first, or use ops.logical_and or ops.where")
    return found


def _record(name: str, out: Native, a: Operand, b: Operand, pull: Pull) -> Tensor:
    """The result of a binary operation. What `pull` closes over lives until backward."""
    if isinstance(a, Tensor) and isinstance(b, Tensor):
        shape_a, shape_b, backend = a.shape, b.shape, a.backend
        if shape_a == shape_b == out.shape:
            return record(name, out, a, (a, b), pull)

        def vjp(dy: Native, needs: tuple[bool, ...]) -> tuple[Native | None, ...]:
            da, db = pull(dy, needs)
            return (
                unbroadcast(backend, da, shape_a) if needs[0] else None,
                unbroadcast(backend, db, shape_b) if needs[1] else None,
            )

        return record(name, out, a, (a, b), vjp)
    at, like = (0, a) if isinstance(a, Tensor) else (1, b)
    assert isinstance(like, Tensor)  # one operand is, or `_operands` had refused
    shape, backend, only = like.shape, like.backend, (at == 0, at == 1)
    return record(name, out, like, (like,), lambda dy, _: (unbroadcast(backend, pull(dy, only)[at], shape),))


def _wants_gradient(operand: Operand) -> bool:
    return isinstance(operand, Tensor) and operand.requires_grad


def add(a: Operand, b: Operand) -> Tensor:
    """The sum a + b."""
    like, x, y = _numeric("add", a, b)
    return _record("add", like.backend.tools.elementwise.add(x, y), a, b, lambda dy, _: (dy, dy))


def subtract(a: Operand, b: Operand) -> Tensor:
    """The difference a - b."""
    like, x, y = _numeric("subtract", a, b)
    e = like.backend.tools.elementwise
    return _record("subtract", e.subtract(x, y), a, b, lambda dy, needs: (dy, e.negative(dy) if needs[1] else None))


def multiply(a: Operand, b: Operand) -> Tensor:
    """The product a * b."""
    like, x, y = _numeric("multiply", a, b)
    times = like.backend.tools.elementwise.multiply
    kept_x, kept_y = x if _wants_gradient(b) else None, y if _wants_gradient(a) else None

    def pull(dy: Native, needs: tuple[bool, ...]) -> tuple[Native | None, ...]:
        return times(dy, kept_y) if needs[0] else None, times(dy, kept_x) if needs[1] else None

    return _record("multiply", times(x, y), a, b, pull)


def divide(a: Operand, b: Operand) -> Tensor:
    """The quotient a / b, floats only."""
    like, x, y = _numeric("divide", a, b)
    require_float("divide", like)
    e = like.backend.tools.elementwise

    def pull(dy: Native, needs: tuple[bool, ...]) -> tuple[Native | None, ...]:
        over = e.divide(dy, y)
        return over, e.negative(e.divide(e.multiply(over, x), y)) if needs[1] else None

    return _record("divide", e.divide(x, y), a, b, pull)


def maximum(a: Operand, b: Operand) -> Tensor:
    """The larger of both; NaN wins. The gradient goes to the larger, and by halves to both where they are equal."""
    like, x, y = _numeric("maximum", a, b)
    e = like.backend.tools.elementwise
    return _record("maximum", e.maximum(x, y), a, b, _to_lower(like.backend, y, x))


def minimum(a: Operand, b: Operand) -> Tensor:
    """The smaller of both; NaN wins. The gradient goes to the smaller, and by halves to both where they are equal."""
    like, x, y = _numeric("minimum", a, b)
    e = like.backend.tools.elementwise
    return _record("minimum", e.minimum(x, y), a, b, _to_lower(like.backend, x, y))


def _to_lower(backend: OpenBackend, low: Native, high: Native) -> Pull:
    """The first operand gets the gradient where low < high, half of it where they are equal."""
    e, storage = backend.tools.elementwise, backend.tools.storage

    def pull(dy: Native, needs: tuple[bool, ...]) -> tuple[Native | None, ...]:
        first = e.where(e.equal(low, high), 0.5, storage.cast(e.less(low, high), storage.dtype_of(dy)))
        return e.multiply(dy, first), e.multiply(dy, e.subtract(1.0, first))

    return pull


def negative(x: Tensor) -> Tensor:
    """-x."""
    e = same_backend("negative", x).tools.elementwise
    if x.dtype == "bool":
        raise DTypeError("negative got dtype bool; wanted numbers: cast it first")
    return record("negative", e.negative(x.value), x, (x,), lambda dy, _: (e.negative(dy),))


def exp(x: Tensor) -> Tensor:
    """e^x."""
    e = same_floats("exp", x).tools.elementwise
    y = e.exp(x.value)
    return record("exp", y, x, (x,), lambda dy, _: (e.multiply(dy, y),))


def log(x: Tensor) -> Tensor:
    """Natural logarithm; -inf at 0, NaN below."""
    e, value = same_floats("log", x).tools.elementwise, x.value
    return record("log", e.log(value), x, (x,), lambda dy, _: (e.divide(dy, value),))


def sqrt(x: Tensor) -> Tensor:
    """Square root; NaN below 0."""
    e = same_floats("sqrt", x).tools.elementwise
    y = e.sqrt(x.value)
    return record("sqrt", y, x, (x,), lambda dy, _: (e.divide(e.multiply(dy, 0.5), y),))


def rsqrt(x: Tensor) -> Tensor:
    """1 / sqrt(x)."""
    e, value = same_floats("rsqrt", x).tools.elementwise, x.value
    y = e.rsqrt(value)
    return record("rsqrt", y, x, (x,), lambda dy, _: (e.multiply(e.multiply(dy, -0.5), e.divide(y, value)),))


def tanh(x: Tensor) -> Tensor:
    """Hyperbolic tangent."""
    e = same_floats("tanh", x).tools.elementwise
    y = e.tanh(x.value)
    return record("tanh", y, x, (x,), lambda dy, _: (e.multiply(dy, e.subtract(1.0, e.multiply(y, y))),))


def erf(x: Tensor) -> Tensor:
    """The error function."""
    e, value = same_floats("erf", x).tools.elementwise, x.value

    def vjp(dy: Native, needs: tuple[bool, ...]) -> tuple[Native, ...]:
        density = e.exp(e.negative(e.multiply(value, value)))
        return (e.multiply(dy, e.multiply(density, 2.0 / math.sqrt(math.pi))),)

    return record("erf", e.erf(value), x, (x,), vjp)


def where(condition: Tensor, a: Operand, b: Operand) -> Tensor:
    """Takes a where the bool condition holds, else b; the gradient goes to the chosen operand only."""
    like, x, y = _operands("where", a, b)
    choose = same_backend("where", condition, like).tools.elementwise.where
    if condition.dtype != "bool":
        raise DTypeError(f"where got a condition of dtype {condition.dtype}; wanted bool: compare, or cast it first")
    for operand in (a, b):
        if isinstance(operand, Tensor):
            broadcast_shape("where", condition.shape, operand.shape)
    chosen = condition.value

    def pull(dy: Native, needs: tuple[bool, ...]) -> tuple[Native | None, ...]:
        return choose(chosen, dy, 0.0) if needs[0] else None, choose(chosen, 0.0, dy) if needs[1] else None

    return _record("where", choose(chosen, x, y), a, b, pull)


def equal(a: Operand, b: Operand) -> Tensor:
    """bool: a == b. No gradient."""
    like, x, y = _operands("equal", a, b)
    return Tensor(like.backend.tools.elementwise.equal(x, y), like.backend, "bool")


def less(a: Operand, b: Operand) -> Tensor:
    """bool: a < b. No gradient."""
    like, x, y = _numeric("less", a, b)
    return Tensor(like.backend.tools.elementwise.less(x, y), like.backend, "bool")


def less_equal(a: Operand, b: Operand) -> Tensor:
    """bool: a <= b. No gradient."""
    like, x, y = _numeric("less_equal", a, b)
    return Tensor(like.backend.tools.elementwise.less_equal(x, y), like.backend, "bool")


def logical_and(a: Tensor, b: Tensor) -> Tensor:
    """bool: both. No gradient."""
    backend = same_backend("logical_and", a, b)
    if a.dtype != "bool" or b.dtype != "bool":
        raise DTypeError(f"logical_and got dtypes {a.dtype} and {b.dtype}; wanted bool")
    broadcast_shape("logical_and", a.shape, b.shape)
    return Tensor(backend.tools.elementwise.logical_and(a.value, b.value), backend, "bool")


def isfinite(x: Tensor) -> Tensor:
    """bool: neither infinite nor NaN. No gradient."""
    backend = same_floats("isfinite", x)
    return Tensor(backend.tools.elementwise.isfinite(x.value), backend, "bool")
