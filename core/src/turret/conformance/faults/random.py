"""Wrong random numbers."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from turret.spi import Shape

from .fault import Broken, Tools, edited, fault, new

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


FAULTS = (reaching_one, overlapping_streams)
