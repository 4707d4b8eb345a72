"""Wrong optimizer steps."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from turret.spi import Adapted

from .fault import Broken, Tools, fault, wide


@fault(
    name="adam-eps-scaled-by-bias-correction",
    slot="adam",
    url="https://github.com/aiqm/torchani/pull/261",
    report=(
        "The update folded the bias correction into the step size, which scales eps by sqrt(1 - beta2^t) and "
        "deviates from the paper in early steps."
    ),
    summary=(
        "adam.update uses lr * sqrt(c2) / c1 * m / (sqrt(v) + eps): the same as the contract up to eps, visible "
        "only for small second moments and early steps."
    ),
)
def scaled_eps(good: Any, tools: Tools) -> Broken:
    def update(*arrays: Sequence[Any], correction2: Any, eps: float, **options: Any) -> Any:
        root = math.sqrt(float(tools.storage.to_host(correction2)))
        return good.update(*arrays, correction2=correction2, eps=eps / root, **options)

    return Broken(good, update=update)


@fault(
    name="adam-decay-through-the-moments",
    slot="adam",
    url="https://github.com/flagos-ai/FlagGems/issues/4988",
    report=(
        "A fused kernel mixed up the coupled and the decoupled decay rule, so both parameters and moments came out"
        " wrong as soon as weight_decay was non-zero; zero decay hid it."
    ),
    summary=(
        "adam.update adds decay * p to the (clipped) gradient before the moments instead of decoupled decay, for "
        "tensors whose decay is non-zero."
    ),
)
def coupled_decay(good: Any, tools: Tools) -> Broken:
    storage = tools.storage

    def update(
        params: Sequence[Any],
        grads: Sequence[Any],
        first: Sequence[Any],
        second: Sequence[Any],
        /,
        *,
        decay: Sequence[float],
        max_norm: float,
        donate: bool,
        **options: Any,
    ) -> Any:
        lists = (params, grads, first, second)
        if not any(decay):
            return good.update(*lists, decay=decay, max_norm=max_norm, donate=donate, **options)
        right = good.update(*lists, decay=decay, max_norm=max_norm, donate=False, **options)
        if not storage.to_host(right.finite):
            return right
        norm = float(storage.to_host(right.norm))
        clip = max_norm / norm if norm > max_norm else 1.0
        mixed = [
            storage.from_host((wide(storage, g) * clip + rate * wide(storage, p)).astype(np.float32))
            if storage.dtype_of(g) == "float32"
            else storage.from_host(wide(storage, g) * clip + rate * wide(storage, p), dtype=storage.dtype_of(g))
            for p, g, rate in zip(params, grads, decay, strict=True)
        ]
        none = [0.0] * len(decay)
        wrong = good.update(params, mixed, first, second, decay=none, max_norm=math.inf, donate=donate, **options)
        return Adapted(wrong.params, wrong.first, wrong.second, right.norm, wrong.finite)

    return Broken(good, update=update)


FAULTS = (scaled_eps, coupled_decay)
