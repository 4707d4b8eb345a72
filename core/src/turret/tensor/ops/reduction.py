"""Folding axes: sum, mean, max and argmax."""

from __future__ import annotations

import builtins
import math
from collections.abc import Sequence

from turret.registry import OpenBackend
from turret.spi import FLOATS, DTypeError, ShapeError

from ..graph import Native
from ..value import Tensor, record, same_backend, same_floats

Axis = int | Sequence[int] | None


def _axes(name: str, x: Tensor, axis: Axis) -> tuple[int, ...]:
    """Sorted non-negative axes; None means all."""
    rank = x.ndim
    if axis is None:
        return tuple(range(rank))
    wanted = (axis,) if isinstance(axis, int) else tuple(axis)
    for a in wanted:
        if not -rank <= a < rank:
            raise ShapeError(f"{name} over axis {a} of a tensor of shape {x.shape}; wanted {-rank} <= axis < {rank}")
    found = tuple(sorted({a % rank for a in wanted}))
    if len(found) != len(wanted):
        raise ShapeError(f"{name} got axis {axis} for a tensor of rank {rank}; an axis may be named once")
    return found


def _summable(name: str, x: Tensor) -> OpenBackend:
    backend = same_backend(name, x)
    if x.dtype not in FLOATS and x.dtype not in ("int32", "int64"):
        raise DTypeError(f"{name} got dtype {x.dtype}; wanted a float dtype, int32 or int64: cast it first")
    return backend


def _kept(x: Tensor, axes: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(1 if i in axes else size for i, size in enumerate(x.shape))


def sum(x: Tensor, axis: Axis = None, *, keepdims: bool = False) -> Tensor:
    """Sum over axes (all by default); the dtype is kept."""
    tools = _summable("sum", x).tools
    axes, shape = _axes("sum", x, axis), x.shape
    if not axes:
        return x
    kept = _kept(x, axes)
    out = tools.reduction.sum(x.value, axis=axes, keepdims=keepdims)
    return record(
        "sum", out, x, (x,), lambda dy, _: (tools.layout.broadcast_to(tools.layout.reshape(dy, kept), shape),)
    )


def mean(x: Tensor, axis: Axis = None, *, keepdims: bool = False) -> Tensor:
    """Mean over axes (all by default), floats only; NaN over an empty axis."""
    tools = same_floats("mean", x).tools
    axes, shape = _axes("mean", x, axis), x.shape
    if not axes:
        return x
    kept = _kept(x, axes)
    count = math.prod(shape[a] for a in axes)
    out = tools.reduction.mean(x.value, axis=axes, keepdims=keepdims)

    def vjp(dy: Native, needs: tuple[bool, ...]) -> tuple[Native, ...]:
        share = tools.elementwise.multiply(tools.layout.reshape(dy, kept), 1.0 / builtins.max(count, 1))
        return (tools.layout.broadcast_to(share, shape),)

    return record("mean", out, x, (x,), vjp)


def max(x: Tensor, axis: Axis = None, *, keepdims: bool = False) -> Tensor:
    """Maximum over axes (all by default); NaN wins. Equal maxima share the gradient evenly.

    Raises: ShapeError for an empty axis.
    """
    tools = _summable("max", x).tools
    axes, value = _axes("max", x, axis), x.value
    if not axes:
        return x
    if any(x.shape[a] == 0 for a in axes):
        raise ShapeError(f"max over an empty axis: shape {x.shape}, axis {axis}; there is no greatest of nothing")
    kept, dtype = _kept(x, axes), x.dtype
    top = tools.reduction.max(value, axis=axes, keepdims=True)
    out = top if keepdims else tools.layout.reshape(top, tuple(s for i, s in enumerate(x.shape) if i not in axes))

    def vjp(dy: Native, needs: tuple[bool, ...]) -> tuple[Native, ...]:
        e = tools.elementwise
        hits = tools.storage.cast(e.equal(value, top), dtype)
        share = e.divide(tools.layout.reshape(dy, kept), tools.reduction.sum(hits, axis=axes, keepdims=True))
        return (e.multiply(hits, share),)

    return record("max", out, x, (x,), vjp)


def argmax(x: Tensor, axis: int = -1, *, keepdims: bool = False) -> Tensor:
    """int32 position of the first of the greatest along one axis. No gradient."""
    backend = _summable("argmax", x)
    (only,) = _axes("argmax", x, axis)
    if x.shape[only] == 0:
        raise ShapeError(f"argmax over an empty axis: shape {x.shape}, axis {axis}")
    return Tensor(backend.tools.reduction.argmax(x.value, axis=only, keepdims=keepdims), backend, "int32")
