"""Wrong reductions."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from turret.spi import Host

from .fault import Broken, Tools, edited, fault

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


FAULTS = (last_of_equals, only_first_of_unit_axis)
