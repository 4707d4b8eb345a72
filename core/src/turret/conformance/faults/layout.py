"""Wrong rearrangement."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from turret.spi import Host, Shape

from .fault import Broken, Remembered, Tools, Views, edited, fault


@fault(
    name="pad-value-lost-through-slice",
    slot="layout",
    url="https://github.com/tinygrad/tinygrad/issues/2194",
    report=(
        "Reading a padded array whole showed the padding value, but slicing out just the padded part gave zero, "
        "because the view kept the mask and lost the fill value."
    ),
    summary=(
        "layout.slice applied to a result of layout.pad with a non-zero value returns 0 where the sliced region "
        "lies completely inside the padding (the wrapper remembers pad results by identity)."
    ),
)
def fill_value_lost(good: Any, tools: Tools) -> Broken:
    padded = Remembered()

    def pad(x: Any, widths: Sequence[tuple[int, int]], /, *, value: float = 0.0) -> Any:
        result = good.pad(x, widths, value=value)
        if value != 0 and result is not x:
            padded.keep(result, [(before, before + n) for (before, _), n in zip(widths, x.shape, strict=True)])
        return result

    def cut(x: Any, start: Shape, stop: Shape, /, *, step: Shape | None = None) -> Any:
        result = good.slice(x, start, stop, step=step)
        inner = padded.about(x)
        if inner is None or not any(
            last <= low or first >= high for first, last, (low, high) in zip(start, stop, inner, strict=True)
        ):
            return result
        return edited(tools.storage, result, lambda host: host * 0)

    return Broken(good, pad=pad, slice=cut)


@fault(
    name="concatenate-of-unit-columns",
    slot="layout",
    url="https://github.com/tenstorrent/tt-metal/issues/21581",
    report=(
        "Concatenating arrays whose last axis is 1 along that last axis gave the right first element and zeros for"
        " all the others."
    ),
    summary=(
        "layout.concatenate along the last axis, when every input has size 1 there and there are three or more "
        "inputs, keeps the first input's column and puts zeros in the others."
    ),
)
def first_column_alone(good: Any, tools: Tools) -> Broken:
    def concatenate(xs: Sequence[Any], /, *, axis: int) -> Any:
        result = good.concatenate(xs, axis=axis)
        if axis != len(result.shape) - 1 or len(xs) < 3 or any(x.shape[-1] != 1 for x in xs):
            return result

        def drop(host: Host) -> None:
            host[..., 1:] = 0

        return edited(tools.storage, result, drop)

    return Broken(good, concatenate=concatenate)


@fault(
    name="reshape-after-transpose-ignores-strides",
    slot="layout",
    views=True,
    url="https://github.com/mratsim/Arraymancer/issues/386",
    report=(
        "Reshaping a permuted array reused the storage without a copy although the orders differ, so the "
        "permutation was lost."
    ),
    summary=(
        "layout.reshape of an array that came out of layout.transpose returns the elements in storage order; "
        "reshapes of packed arrays are right."
    ),
)
def storage_order(good: Any, tools: Tools, views: Views) -> Broken:
    def reshape(x: Any, shape: Shape, /) -> Any:
        view = views.about(x)
        return good.reshape(view.source if view is not None and view.method == "transpose" else x, shape)

    return Broken(good, reshape=reshape)


@fault(
    name="pad-corner-takes-other-value",
    slot="layout",
    url="https://github.com/jax-ml/jax/issues/26888",
    report="Padding two axes at once put the wrong one of the pad values into a corner block; edges were right.",
    summary=(
        "layout.pad with a non-zero value on two or more axes writes 0 into the corner blocks where two axes are "
        "both in their trailing padding."
    ),
)
def other_corner(good: Any, tools: Tools) -> Broken:
    def pad(x: Any, widths: Sequence[tuple[int, int]], /, *, value: float = 0.0) -> Any:
        result = good.pad(x, widths, value=value)
        trailing = np.zeros(result.shape, int)
        for axis, ((before, _), size) in enumerate(zip(widths, x.shape, strict=True)):
            places = np.arange(result.shape[axis]) >= before + size
            trailing += places.reshape(-1, *(1,) * (len(x.shape) - axis - 1))
        if value == 0 or not (trailing >= 2).any():
            return result
        return edited(tools.storage, result, lambda host: np.where(trailing >= 2, 0, host).astype(host.dtype))

    return Broken(good, pad=pad)


@fault(
    name="pad-tail-left-unset",
    slot="layout",
    url="https://github.com/deeplearning4j/deeplearning4j/issues/7707",
    report="Constant padding left some entries at the end of the output unwritten, depending on the size.",
    summary=(
        "layout.pad with more than 1024 output elements that are no multiple of 32 leaves the last (n % 32) "
        "padding elements of the flattened output at NaN (0 for integers)."
    ),
)
def unset_tail(good: Any, tools: Tools) -> Broken:
    def pad(x: Any, widths: Sequence[tuple[int, int]], /, *, value: float = 0.0) -> Any:
        result = good.pad(x, widths, value=value)
        size = math.prod(result.shape)
        if size <= 1024 or not size % 32:
            return result
        padding = np.pad(np.zeros(x.shape, bool), widths, constant_values=True).reshape(-1)
        padding[: size - size % 32] = False

        def unset(host: Host) -> None:
            host.reshape(-1)[padding] = math.nan if host.dtype.kind == "f" else 0

        return edited(tools.storage, result, unset)

    return Broken(good, pad=pad)


@fault(
    name="pad-gradient-slices-by-axis-number",
    slot="layout",
    url="https://github.com/ml-explore/mlx/pull/4441",
    report=(
        "The gradient of a pad over a subset of axes used sizes by axis number instead of by position, so it "
        "returned an array of the wrong shape."
    ),
    summary=(
        "layout.slice with a step given on exactly one axis returns one element too many on that axis when the "
        "length is no multiple of the step (wrong shape, the extra element repeats the last)."
    ),
)
def one_too_many(good: Any, tools: Tools) -> Broken:
    def cut(x: Any, start: Shape, stop: Shape, /, *, step: Shape | None = None) -> Any:
        result = good.slice(x, start, stop, step=step)
        stepped = [n for n, each in enumerate(step or ()) if each > 1]
        if step is None or len(stepped) != 1 or 0 in result.shape:
            return result
        axis = stepped[0]
        if not (stop[axis] - start[axis]) % step[axis]:
            return result
        first = tuple(size - 1 if n == axis else 0 for n, size in enumerate(result.shape))
        return good.concatenate([result, good.slice(result, first, tuple(result.shape))], axis=axis)

    return Broken(good, slice=cut)


FAULTS = (
    fill_value_lost,
    first_column_alone,
    storage_order,
    other_corner,
    unset_tail,
    one_too_many,
)
