"""Rearranging: reshape, transpose, slice, concatenate, pad, broadcast and cast."""

from __future__ import annotations

import builtins
import math
from collections.abc import Sequence
from numbers import Integral
from typing import Any

from turret.spi import FLOATS, DType, DTypeError, Shape, ShapeError

from ..graph import Native
from ..value import Tensor, record, same_backend, same_dtype
from .elementwise import broadcast_shape, unbroadcast


def reshape(x: Tensor, shape: Sequence[int]) -> Tensor:
    """The same elements in row-major order; one size may be -1 and is worked out."""
    layout, old = same_backend("reshape", x).tools.layout, x.shape
    new = _resolve(old, tuple(shape))
    return record("reshape", layout.reshape(x.value, new), x, (x,), lambda dy, _: (layout.reshape(dy, old),))


def _resolve(old: Shape, new: Shape) -> Shape:
    size = math.prod(old)
    if new.count(-1) == 1:
        rest = -math.prod(new)
        if rest > 0 and size % rest == 0:
            new = tuple(size // rest if n == -1 else n for n in new)
    if any(n < 0 for n in new) or math.prod(new) != size:
        raise ShapeError(
            f"reshape of {old} ({size} elements) to {new}; wanted the same number of elements, one -1 at most"
        )
    return new


def transpose(x: Tensor, axes: Sequence[int] = ()) -> Tensor:
    """Axis i of the result is axis `axes[i]` of x; reversed by default."""
    layout = same_backend("transpose", x).tools.layout
    rank = x.ndim
    order = tuple(a % rank if -rank <= a < rank else a for a in axes) or tuple(reversed(range(rank)))
    if sorted(order) != list(range(rank)):
        raise ShapeError(f"transpose of shape {x.shape} by axes {tuple(axes)}; wanted each of 0..{rank - 1} once")
    back = tuple(order.index(i) for i in range(rank))
    return record("transpose", layout.transpose(x.value, order), x, (x,), lambda dy, _: (layout.transpose(dy, back),))


def slice(x: Tensor, start: Sequence[int], stop: Sequence[int], *, step: Sequence[int] | None = None) -> Tensor:
    """Static bounds, one per axis: 0 <= start <= stop <= size, step >= 1."""
    tools, shape = same_backend("slice", x).tools, x.shape
    first, last, steps = tuple(start), tuple(stop), tuple(step) if step is not None else (1,) * x.ndim
    if not len(first) == len(last) == len(steps) == x.ndim:
        raise ShapeError(f"slice of shape {shape} got {len(first)} starts and {len(last)} stops; wanted one per axis")
    for a, b, s, size in zip(first, last, steps, shape, strict=True):
        if not 0 <= a <= b <= size or s < 1:
            raise ShapeError(
                f"slice {first} to {last} step {steps} of shape {shape}; wanted 0 <= start <= stop <= size"
            )
    out = tools.layout.slice(x.value, first, last, step=None if step is None else steps)

    def vjp(dy: Native, needs: tuple[bool, ...]) -> tuple[Native, ...]:
        for axis, s in enumerate(steps):
            if s > 1:
                dy = _spread(tools, dy, axis, s)
        widths = [(a, size - a - n) for a, size, n in zip(first, shape, tuple(dy.shape), strict=True)]
        return (_fit(tools, dy, widths),)

    return record("slice", out, x, (x,), vjp)


def _fit(tools: Any, dy: Native, widths: list[tuple[int, int]]) -> Native:
    """Pads; a spread gradient may reach past the end by less than one step, which is cut first."""
    shape = tuple(dy.shape)
    stops = tuple(n + builtins.min(after, 0) for n, (_, after) in zip(shape, widths, strict=True))
    if stops != shape:
        dy = tools.layout.slice(dy, (0,) * len(shape), stops)
    return tools.layout.pad(dy, [(before, builtins.max(after, 0)) for before, after in widths])


def _spread(tools: Any, dy: Native, axis: int, step: int) -> Native:
    """Zeros between the elements along one axis: element i moves to i * step."""
    shape = tuple(dy.shape)
    column = tools.layout.reshape(dy, (*shape[: axis + 1], 1, *shape[axis + 1 :]))
    widths = [(0, step - 1) if i == axis + 1 else (0, 0) for i in range(len(shape) + 1)]
    return tools.layout.reshape(
        tools.layout.pad(column, widths), (*shape[:axis], shape[axis] * step, *shape[axis + 1 :])
    )


def index(x: Tensor, key: Any) -> Tensor:
    """`x[key]` for integers, slices with positive step, and one `...`; rows by an array are `gather_rows`."""
    same_backend("index", x)
    shape = x.shape
    keys = _one_key_per_axis(key, shape)
    bounds = [_bounds(item, axis, shape) for axis, item in enumerate(keys)]
    start, stop, step = ([b[i] for b in bounds] for i in range(3))
    out = slice(x, start, stop, step=step if any(s > 1 for s in step) else None)
    kept = tuple(n for n, item in zip(out.shape, keys, strict=True) if isinstance(item, builtins.slice))
    return out if len(kept) == len(shape) else reshape(out, kept)


def _one_key_per_axis(key: Any, shape: Shape) -> tuple[Any, ...]:
    keys, rank, whole = key if isinstance(key, tuple) else (key,), len(shape), builtins.slice(None)
    dots = [i for i, item in enumerate(keys) if item is ...]  # not keys.count: an array among them compares by element
    if len(dots) > 1:
        raise ShapeError(f"index got '...' {len(dots)} times; wanted it once at most")
    if len(keys) - len(dots) > rank:
        raise ShapeError(f"index got {len(keys) - len(dots)} entries; wanted {rank} at most for shape {shape}")
    at = dots[0] if dots else len(keys)
    missing = (whole,) * (rank - len(keys) + len(dots))
    return (*keys[:at], *missing, *keys[at + 1 :])


def _bounds(item: Any, axis: int, shape: Shape) -> tuple[int, int, int]:
    """(start, stop, step) of one entry of an index."""
    size = shape[axis]
    if isinstance(item, builtins.slice):
        start, stop, step = item.indices(size)
        if step < 1:
            raise ShapeError(f"index got step {step} on axis {axis}; wanted a step of at least 1")
        return start, builtins.max(start, stop), step
    if isinstance(item, bool) or not isinstance(item, Integral):
        raise DTypeError(
            f"index got {type(item).__name__} on axis {axis}; wanted an int or a slice: ops.gather_rows takes an array"
        )
    place = int(item)
    if not -size <= place < size:
        raise ShapeError(f"index {place} on axis {axis} of shape {shape}; wanted {-size} <= index < {size}")
    return place % size, place % size + 1, 1


def concatenate(xs: Sequence[Tensor], axis: int) -> Tensor:
    """Joined along one axis; equal dtypes, equal shapes elsewhere."""
    parts = tuple(xs)
    if not parts:
        raise ShapeError("concatenate got no tensors; wanted at least one")
    backend = same_backend("concatenate", *parts)
    same_dtype("concatenate", *parts)
    first = parts[0].shape
    if not -len(first) <= axis < len(first):
        raise ShapeError(f"concatenate along axis {axis} of shape {first}; wanted {-len(first)} <= axis < {len(first)}")
    at = axis % len(first)
    for t in parts:
        if len(t.shape) != len(first) or t.shape[:at] != first[:at] or t.shape[at + 1 :] != first[at + 1 :]:
            raise ShapeError(f"concatenate along axis {at} got shapes {first} and {t.shape}; wanted equality elsewhere")
    layout = backend.tools.layout
    sizes = [t.shape[at] for t in parts]

    def vjp(dy: Native, needs: tuple[bool, ...]) -> tuple[Native | None, ...]:
        shape, out, begin = tuple(dy.shape), [], 0
        for size, need in zip(sizes, needs, strict=True):
            start, stop = [0] * len(shape), list(shape)
            start[at], stop[at] = begin, begin + size
            out.append(layout.slice(dy, tuple(start), tuple(stop)) if need else None)
            begin += size
        return tuple(out)

    joined = layout.concatenate([t.value for t in parts], axis=at)
    return record("concatenate", joined, parts[0], parts, vjp)


def pad(x: Tensor, widths: Sequence[tuple[int, int]], *, value: float = 0.0) -> Tensor:
    """`value` added (before, after) each axis."""
    layout, shape = same_backend("pad", x).tools.layout, x.shape
    pairs = [(int(a), int(b)) for a, b in widths]
    if len(pairs) != x.ndim or any(a < 0 or b < 0 for a, b in pairs):
        raise ShapeError(f"pad of shape {shape} by {pairs}; wanted one pair of widths >= 0 per axis")
    start = tuple(a for a, _ in pairs)
    stop = tuple(a + n for (a, _), n in zip(pairs, shape, strict=True))
    out = layout.pad(x.value, pairs, value=value)
    return record("pad", out, x, (x,), lambda dy, _: (layout.slice(dy, start, stop),))


def broadcast_to(x: Tensor, shape: Sequence[int]) -> Tensor:
    """Stretched to `shape` by NumPy's rule."""
    backend, old, new = same_backend("broadcast_to", x), x.shape, tuple(shape)
    if broadcast_shape("broadcast_to", old, new) != new:
        raise ShapeError(f"broadcast_to of shape {old} to {new}; sizes may only grow from 1")
    out = backend.tools.layout.broadcast_to(x.value, new)
    return record("broadcast_to", out, x, (x,), lambda dy, _: (unbroadcast(backend, dy, old),))


def cast(x: Tensor, dtype: DType) -> Tensor:
    """The same values in another dtype; a gradient passes between float dtypes only.

    Raises: DTypeError for a dtype the device lacks.
    """
    storage, old = same_backend("cast", x).tools.storage, x.dtype
    if dtype == old:
        return x
    out = Tensor(storage.cast(x.value, dtype), x.backend, dtype)
    if dtype not in FLOATS or old not in FLOATS:
        return out
    return record("cast", out.value, out, (x,), lambda dy, _: (storage.cast(dy, old),))
