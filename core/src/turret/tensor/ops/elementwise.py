"""Element-wise operations with NumPy broadcasting; a Python number may stand for one operand."""

from __future__ import annotations

import math
from collections.abc import Callable

from turret.registry import OpenBackend
from turret.spi import FLOATS, DTypeError, Shape, ShapeError

from ..graph import Native
from ..value import Number, Tensor, record, require_float, same_backend, same_dtype

Operand = Tensor | Number


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
                f"{name} got shapes {a} and {b}; wanted equal shapes, or sizes of 1 where they differ, aligned at the right"
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


def _binary(name: str, a: Operand, b: Operand) -> tuple[OpenBackend, Tensor, Native | Number, Native | Number]:
    """(backend, the tensor operand that gives dtype and backend, both native operands)."""
    if isinstance(a, Tensor):
        if isinstance(b, Tensor):
            backend = same_backend(name, a, b)
            same_dtype(name, a, b)
            if a.value.shape != b.value.shape:
                broadcast_shape(name, a.shape, b.shape)
            return backend, a, a.value, b.value
        return a.backend, a, a.value, _number(name, b, a)
    if isinstance(b, Tensor):
        return b.backend, b, _number(name, a, b), b.value
    raise DTypeError(f"{name} got {type(a).__name__} and {type(b).__name__}; wanted at least one Tensor")


def _number(name: str, number: object, beside: Tensor) -> Number:
    if not isinstance(number, (int, float)):
        raise DTypeError(
            f"{name} got {type(number).__name__}; wanted a Tensor or a Python number: wrap host data with turret.tensor(...)"
        )
    if isinstance(number, float) and beside.dtype not in FLOATS:
        raise DTypeError(f"{name} got the float {number} with a tensor of dtype {beside.dtype}; cast the tensor first")
    return float(number) if beside.dtype in FLOATS else number


def _apply(
    name: str,
    a: Operand,
    b: Operand,
    forward: Callable[[OpenBackend, Native, Native], Native],
    pull: Callable[[OpenBackend, Native, Native, Native, tuple[bool, bool]], tuple[Native | None, Native | None]],
) -> Tensor:
    """One binary operation. pull: (backend, dy, a, b, needs) -> gradients before unbroadcasting."""
    backend, like, x, y = _binary(name, a, b)
    out = forward(backend, x, y)
    if isinstance(a, Tensor) and isinstance(b, Tensor):
        shape_a, shape_b = a.shape, b.shape

        def vjp(dy: Native, needs: tuple[bool, ...]) -> tuple[Native | None, ...]:
            da, db = pull(backend, dy, x, y, (needs[0], needs[1]))
            return (
                None if da is None else unbroadcast(backend, da, shape_a),
                None if db is None else unbroadcast(backend, db, shape_b),
            )

        return record(name, out, like, (a, b), vjp)
    first = isinstance(a, Tensor)
    return record(
        name, out, like, (like,), lambda dy, _: (pull(backend, dy, x, y, (first, not first))[0 if first else 1],)
    )


def add(a: Operand, b: Operand) -> Tensor:
    """a + b."""
    return _apply("add", a, b, lambda k, x, y: k.tools.elementwise.add(x, y), lambda k, dy, x, y, needs: (dy, dy))


def subtract(a: Operand, b: Operand) -> Tensor:
    """a - b."""
    return _apply(
        "subtract",
        a,
        b,
        lambda k, x, y: k.tools.elementwise.subtract(x, y),
        lambda k, dy, x, y, needs: (dy, k.tools.elementwise.negative(dy) if needs[1] else None),
    )


def multiply(a: Operand, b: Operand) -> Tensor:
    """a * b."""

    def pull(
        k: OpenBackend, dy: Native, x: Native, y: Native, needs: tuple[bool, bool]
    ) -> tuple[Native | None, Native | None]:
        times = k.tools.elementwise.multiply
        return times(dy, y) if needs[0] else None, times(dy, x) if needs[1] else None

    return _apply("multiply", a, b, lambda k, x, y: k.tools.elementwise.multiply(x, y), pull)


def divide(a: Operand, b: Operand) -> Tensor:
    """a / b, floats only."""
    require_float("divide", *(t for t in (a, b) if isinstance(t, Tensor)))

    def pull(
        k: OpenBackend, dy: Native, x: Native, y: Native, needs: tuple[bool, bool]
    ) -> tuple[Native | None, Native | None]:
        e = k.tools.elementwise
        over = e.divide(dy, y)
        return over, e.negative(e.divide(e.multiply(over, x), y)) if needs[1] else None

    return _apply("divide", a, b, lambda k, x, y: k.tools.elementwise.divide(x, y), pull)


def _extremum(name: str, a: Operand, b: Operand) -> Tensor:
    """The gradient goes to the larger (smaller) operand; of equals each gets half, so that a swap changes nothing."""

    def pull(
        k: OpenBackend, dy: Native, x: Native, y: Native, needs: tuple[bool, bool]
    ) -> tuple[Native | None, Native | None]:
        e = k.tools.elementwise
        low, high = (x, y) if name == "minimum" else (y, x)
        first = e.where(e.equal(x, y), 0.5, e.where(e.less(low, high), dy_one(k, dy), 0.0))
        return e.multiply(dy, first), e.multiply(dy, e.subtract(1.0, first))

    return _apply(name, a, b, lambda k, x, y: getattr(k.tools.elementwise, name)(x, y), pull)


def dy_one(backend: OpenBackend, dy: Native) -> Native:
    """Ones shaped and typed like a gradient: `where` needs an array to take the dtype from."""
    storage = backend.tools.storage
    return storage.full(tuple(dy.shape), 1.0, dtype=storage.dtype_of(dy))


def maximum(a: Operand, b: Operand) -> Tensor:
    """The larger of both; NaN wins."""
    return _extremum("maximum", a, b)


def minimum(a: Operand, b: Operand) -> Tensor:
    """The smaller of both; NaN wins."""
    return _extremum("minimum", a, b)


def negative(x: Tensor) -> Tensor:
    """-x."""
    e = same_backend("negative", x).tools.elementwise
    return record("negative", e.negative(x.value), x, (x,), lambda dy, _: (e.negative(dy),))


def exp(x: Tensor) -> Tensor:
    """e^x."""
    require_float("exp", x)
    e = x.backend.tools.elementwise
    y = e.exp(x.value)
    return record("exp", y, x, (x,), lambda dy, _: (e.multiply(dy, y),))


def log(x: Tensor) -> Tensor:
    """Natural logarithm; -inf at 0, NaN below."""
    require_float("log", x)
    e, value = x.backend.tools.elementwise, x.value
    return record("log", e.log(value), x, (x,), lambda dy, _: (e.divide(dy, value),))


def sqrt(x: Tensor) -> Tensor:
    """Square root; NaN below 0."""
    require_float("sqrt", x)
    e = x.backend.tools.elementwise
    y = e.sqrt(x.value)
    return record("sqrt", y, x, (x,), lambda dy, _: (e.divide(e.multiply(dy, 0.5), y),))


def rsqrt(x: Tensor) -> Tensor:
    """1 / sqrt(x)."""
    require_float("rsqrt", x)
    e, value = x.backend.tools.elementwise, x.value
    y = e.rsqrt(value)
    return record("rsqrt", y, x, (x,), lambda dy, _: (e.multiply(e.multiply(dy, -0.5), e.divide(y, value)),))


def tanh(x: Tensor) -> Tensor:
    """Hyperbolic tangent."""
    require_float("tanh", x)
    e = x.backend.tools.elementwise
    y = e.tanh(x.value)
    return record("tanh", y, x, (x,), lambda dy, _: (e.multiply(dy, e.subtract(1.0, e.multiply(y, y))),))


def erf(x: Tensor) -> Tensor:
    """The error function."""
    require_float("erf", x)
    e, value = x.backend.tools.elementwise, x.value

    def vjp(dy: Native, needs: tuple[bool, ...]) -> tuple[Native, ...]:
        density = e.exp(e.negative(e.multiply(value, value)))
        return (e.multiply(dy, e.multiply(density, 2.0 / math.sqrt(math.pi))),)

    return record("erf", e.erf(value), x, (x,), vjp)


def where(condition: Tensor, a: Operand, b: Operand) -> Tensor:
    """a where the bool condition holds, else b; the gradient goes to the chosen operand only."""
    if not isinstance(condition, Tensor) or condition.dtype != "bool":
        raise DTypeError(f"where got a condition {condition!r}; wanted a Tensor of dtype bool")
    backend, _, x, y = _binary("where", a, b)
    same_backend("where", condition, *(t for t in (a, b) if isinstance(t, Tensor)))
    for operand in (a, b):
        if isinstance(operand, Tensor):
            broadcast_shape("where", condition.shape, operand.shape)
    chosen, choose = condition.value, backend.tools.elementwise.where
    return _apply(
        "where",
        a,
        b,
        lambda k, x, y: choose(chosen, x, y),
        lambda k, dy, x, y, needs: (
            choose(chosen, dy, 0.0) if needs[0] else None,
            choose(chosen, 0.0, dy) if needs[1] else None,
        ),
    )


def _compare(name: str, a: Operand, b: Operand) -> Tensor:
    backend, _, x, y = _binary(name, a, b)
    return Tensor(getattr(backend.tools.elementwise, name)(x, y), backend, "bool")


def equal(a: Operand, b: Operand) -> Tensor:
    """bool: a == b. No gradient."""
    return _compare("equal", a, b)


def less(a: Operand, b: Operand) -> Tensor:
    """bool: a < b. No gradient."""
    return _compare("less", a, b)


def less_equal(a: Operand, b: Operand) -> Tensor:
    """bool: a <= b. No gradient."""
    return _compare("less_equal", a, b)


def logical_and(a: Tensor, b: Tensor) -> Tensor:
    """bool: both."""
    backend = same_backend("logical_and", a, b)
    if a.dtype != "bool" or b.dtype != "bool":
        raise DTypeError(f"logical_and got dtypes {a.dtype} and {b.dtype}; wanted bool")
    broadcast_shape("logical_and", a.shape, b.shape)
    return Tensor(backend.tools.elementwise.logical_and(a.value, b.value), backend, "bool")


def isfinite(x: Tensor) -> Tensor:
    """bool: neither infinite nor NaN."""
    require_float("isfinite", x)
    return Tensor(x.backend.tools.elementwise.isfinite(x.value), x.backend, "bool")
