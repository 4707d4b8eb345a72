"""Wrong random numbers."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from turret.spi import Host, Shape

from .fault import Broken, Tools, edited, fault, new, wide

LANES = 256
DELAY = 7


@fault(
    name="uniform-reaches-one",
    slot="random",
    url="https://github.com/pytorch/pytorch/issues/197079",
    report=(
        "Uniform numbers rounded to a narrower float included the exclusive upper bound 1 about once in some "
        "thousand draws."
    ),
    summary=(
        "random.uniform rounds its values through 12 bits to nearest, so exactly 1.0 appears about once in 8192 "
        "draws and only 4097 levels exist."
    ),
)
def reaching_one(good: Any, tools: Tools) -> Broken:
    def uniform(shape: Shape, /, *, key: int, counter: int) -> Any:
        drawn = good.uniform(shape, key=key, counter=counter)
        return edited(tools.storage, drawn, lambda host: np.asarray(np.round(host * 4096) / 4096))

    return Broken(good, uniform=uniform)


@fault(
    name="neighbour-streams-overlap",
    slot="random",
    url="https://github.com/tenstorrent/tt-metal/issues/13904",
    report=(
        "Parallel lanes of a hardware generator produced the same sequence shifted by a short delay, so numbers "
        "repeated across lanes although each lane alone looked random."
    ),
    summary=(
        "random.bits for counter c is the stream of (key, 0) shifted by 7 * c elements (uniform and normal "
        "follow), so neighbouring counters share almost all their values."
    ),
)
def overlapping_streams(good: Any, tools: Tools) -> Broken:
    storage = tools.storage

    def shifted(draw: Callable[..., Any]) -> Callable[..., Any]:
        def call(shape: Shape, /, *, key: int, counter: int) -> Any:
            count, lane = math.prod(shape), counter % LANES
            stream = draw((count + DELAY * LANES,), key=key, counter=counter - lane)
            own = storage.to_host(stream)[DELAY * lane :][:count]
            return new(storage, own.reshape(shape), stream)

        return call

    return Broken(good, bits=shifted(good.bits), uniform=shifted(good.uniform), normal=shifted(good.normal))


@fault(
    name="normal-emits-infinity",
    slot="random",
    url="https://github.com/JuliaGPU/CUDA.jl/issues/1464",
    report=(
        "The Box-Muller step took the logarithm of a uniform draw that can be exactly 0, so normal numbers were "
        "infinite now and then."
    ),
    summary=(
        "random.normal takes its radius from a uniform with 12 bits including 0, so about one draw in 4096 is infinite."
    ),
)
def infinite_normal(good: Any, tools: Tools) -> Broken:
    storage = tools.storage

    def normal(shape: Shape, /, *, key: int, counter: int) -> Any:
        drawn = good.normal(shape, key=key, counter=counter)
        radius = wide(storage, good.uniform(shape, key=key, counter=counter))
        return edited(storage, drawn, lambda host: np.where(radius < 1 / 4096, np.copysign(math.inf, host), host))

    return Broken(good, normal=normal)


@fault(
    name="normal-repeats-within-group",
    slot="random",
    url="https://github.com/arrayfire/arrayfire/issues/2972",
    report=(
        "Normal numbers on CUDA contained many duplicates since later values of a generated group were written wrongly."
    ),
    summary="random.normal repeats elements 4i and 4i+1 at 4i+2 and 4i+3; mean and variance stay right.",
)
def repeated_normal(good: Any, tools: Tools) -> Broken:
    def repeat(host: Host) -> None:
        flat = host.reshape(-1)
        groups = flat[: len(flat) // 4 * 4].reshape(-1, 4)
        groups[:, 2:] = groups[:, :2]

    def normal(shape: Shape, /, *, key: int, counter: int) -> Any:
        return edited(tools.storage, good.normal(shape, key=key, counter=counter), repeat)

    return Broken(good, normal=normal)


@fault(
    name="small-draws-not-uniform",
    slot="random",
    url="https://github.com/torch/cutorch/issues/97",
    report=(
        "Many small draws together were not uniform although one large draw was, as only big batches used the "
        "generator as intended."
    ),
    summary=(
        "random.uniform for shapes of one element returns a value in the lower half of [0, 1) for even counters "
        "and above for odd ones; large shapes are right."
    ),
)
def halved_draws(good: Any, tools: Tools) -> Broken:
    def uniform(shape: Shape, /, *, key: int, counter: int) -> Any:
        drawn = good.uniform(shape, key=key, counter=counter)
        if math.prod(shape) != 1:
            return drawn
        return edited(tools.storage, drawn, lambda host: host / 2 + (0.5 if counter % 2 else 0.0))

    return Broken(good, uniform=uniform)


FAULTS = (
    reaching_one,
    overlapping_streams,
    infinite_normal,
    repeated_normal,
    halved_draws,
)


@fault(
    name="generator-of-its-own",
    slot="random",
    url="https://github.com/pytorch/pytorch/issues/2976",
    report=(
        "One seed gave one dropout mask on the CPU and another on the GPU, because each device drew from a generator "
        "of its own."
    ),
    summary=(
        "random.bits and uniform leave out the first word of every stream: they are as random as before, and no "
        "other backend has the same."
    ),
)
def other_generator(good: Any, tools: Tools) -> Broken:
    def drawn(draw: Callable[..., Any]) -> Callable[..., Any]:
        def call(shape: Shape, /, *, key: int, counter: int) -> Any:
            count = math.prod(shape)
            stream = draw((count + 1,), key=key, counter=counter)
            return new(tools.storage, tools.storage.to_host(stream)[1:].reshape(shape), stream)

        return call

    return Broken(good, bits=drawn(good.bits), uniform=drawn(good.uniform))
