"""Wrong reductions."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from turret.spi import FLOATS, DType, Host

from ..given import rounded
from .fault import Broken, Tools, edited, fault, new, wide

GRID = 256


@fault(
    name="argmax-last-of-equals",
    slot="reduction",
    url="https://github.com/pytorch/pytorch/issues/93630",
    report=(
        "The generated Triton reduction for argmax and argmin returned the last of several equal extremes, "
        "depending on how lanes were combined, where eager returns the first."
    ),
    summary=(
        "reduction.argmax flips the reduced axis, takes the argmax and mirrors the index whenever that axis has "
        "more than 8 elements, so ties give the last position."
    ),
)
def last_of_equals(good: Any, tools: Tools) -> Broken:
    def argmax(x: Any, /, *, axis: int, keepdims: bool = False) -> Any:
        size = x.shape[axis]
        if size <= 8:
            return good.argmax(x, axis=axis, keepdims=keepdims)
        flipped = np.flip(tools.storage.to_host(x), axis)
        found = size - 1 - np.argmax(flipped, axis=axis, keepdims=keepdims)
        return tools.storage.from_host(np.asarray(found, np.int32))

    return Broken(good, argmax=argmax)


@fault(
    name="sum-over-unit-axis-keeps-one",
    slot="reduction",
    url="https://github.com/JuliaGPU/Metal.jl/issues/661",
    report="Summing a large array over an axis of size 1 returned the first element and zeros everywhere else.",
    summary=(
        "reduction.sum and mean over a single axis of size 1, when the result has more than 256 elements, keep "
        "element 0 of the flattened result and zero all others."
    ),
)
def only_first_of_unit_axis(good: Any, tools: Tools) -> Broken:
    def losing(fold: Callable[..., Any]) -> Callable[..., Any]:
        def call(x: Any, /, *, axis: int | tuple[int, ...], keepdims: bool = False) -> Any:
            result = fold(x, axis=axis, keepdims=keepdims)
            axes = (axis,) if isinstance(axis, int) else axis
            if len(axes) != 1 or x.shape[axes[0]] != 1 or math.prod(result.shape) <= GRID:
                return result

            def first_alone(host: Host) -> None:
                host.reshape(-1)[1:] = 0

            return edited(tools.storage, result, first_alone)

        return call

    return Broken(good, sum=losing(good.sum), mean=losing(good.mean))


@fault(
    name="half-mean-overflows",
    slot="reduction",
    url="https://github.com/tracel-ai/burn/issues/4770",
    report=(
        "The mean of a half-precision array summed in half precision, so it became infinite once the sum passed "
        "65504 although the mean itself was small."
    ),
    summary=(
        "reduction.mean of float16 divides a float16 sum by the count; infinite when the sum passes 65504 (for "
        "bfloat16: sum accumulated in bfloat16)."
    ),
)
def narrow_sums(good: Any, tools: Tools) -> Broken:
    storage = tools.storage

    def summed(x: Any, axis: int | tuple[int, ...], keepdims: bool, dtype: DType) -> Host:
        """Added up in the array's own precision, one element after the other."""
        host = storage.to_host(x)
        axes = tuple(n % host.ndim for n in ((axis,) if isinstance(axis, int) else axis))
        kept = [n for n in range(host.ndim) if n not in axes]
        rows = host.transpose(*kept, *axes).reshape(*(host.shape[n] for n in kept), -1)
        total = np.zeros(rows.shape[:-1], rows.dtype)
        with np.errstate(all="ignore"):
            for n in range(rows.shape[-1]):
                total = rounded(total + rows[..., n], dtype)
        return np.expand_dims(total, axes) if keepdims else total

    def mean(x: Any, /, *, axis: int | tuple[int, ...], keepdims: bool = False) -> Any:
        result = good.mean(x, axis=axis, keepdims=keepdims)
        if storage.dtype_of(x) != "float16" or not math.prod(x.shape):
            return result
        count = math.prod(x.shape) // max(math.prod(result.shape), 1)
        return new(storage, summed(x, axis, keepdims, "float16") / count, x)

    def sum(x: Any, /, *, axis: int | tuple[int, ...], keepdims: bool = False) -> Any:
        if storage.dtype_of(x) != "bfloat16":
            return good.sum(x, axis=axis, keepdims=keepdims)
        return new(storage, summed(x, axis, keepdims, "bfloat16"), x)

    return Broken(good, mean=mean, sum=sum)


@fault(
    name="strided-sum-returns-zeros",
    slot="reduction",
    url="https://github.com/ml-explore/mlx/issues/3784",
    report=(
        "Sums over a non-last axis of certain large shapes returned all zeros since the launch grid overflowed; "
        "last-axis sums were right."
    ),
    summary=(
        "reduction.sum over one axis that is not the last, when the axes behind it hold 512 or more elements, "
        "returns zeros for the part beyond element 512 (limit scaled down)."
    ),
)
def overflowing_grid(good: Any, tools: Tools) -> Broken:
    def sum(x: Any, /, *, axis: int | tuple[int, ...], keepdims: bool = False) -> Any:
        result = good.sum(x, axis=axis, keepdims=keepdims)
        axes = (axis,) if isinstance(axis, int) else axis
        if len(axes) != 1:
            return result
        behind = math.prod(x.shape[axes[0] % len(x.shape) + 1 :])
        if behind <= 2 * GRID or not math.prod(result.shape):
            return result

        def lose(host: Host) -> None:
            host.reshape(-1, behind)[:, 2 * GRID :] = 0

        return edited(tools.storage, result, lose)

    return Broken(good, sum=sum)


@fault(
    name="max-ignores-nan",
    slot="reduction",
    url="https://github.com/pytorch/pytorch/issues/130295",
    report="max on MPS skipped NaN and returned the largest number, where the array API asks for NaN.",
    summary="reduction.max treats NaN as -inf whenever the row also holds a number; an all-NaN row stays NaN.",
)
def numbers_only(good: Any, tools: Tools) -> Broken:
    storage = tools.storage

    def max(x: Any, /, *, axis: int | tuple[int, ...], keepdims: bool = False) -> Any:
        result = good.max(x, axis=axis, keepdims=keepdims)
        if storage.dtype_of(x) not in FLOATS or not math.prod(x.shape):
            return result
        values = wide(storage, x)
        greatest = np.where(np.isnan(values), -math.inf, values).max(axis=axis, keepdims=keepdims)
        no_number = np.isnan(values).all(axis=axis, keepdims=keepdims)
        return new(storage, np.where(no_number, math.nan, greatest), x)

    return Broken(good, max=max)


FAULTS = (
    last_of_equals,
    only_first_of_unit_axis,
    narrow_sums,
    overflowing_grid,
    numbers_only,
)
