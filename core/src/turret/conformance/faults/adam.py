"""Wrong optimizer steps."""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Sequence
from typing import Any

import numpy as np

from turret.spi import Adapted

from .fault import Broken, Tools, edited, fault, wide


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


@fault(
    name="adam-without-bias-correction",
    slot="adam",
    url="https://github.com/ml-explore/mlx/pull/1640",
    report=(
        "The optimizer had no bias correction, which made early steps far too large or small and training of a "
        "small language model stall."
    ),
    summary=("adam.update ignores correction1 and correction2 (uses 1 for both); indistinguishable late in training."),
)
def uncorrected(good: Any, tools: Tools) -> Broken:
    def update(*arrays: Sequence[Any], correction1: Any, correction2: Any, **options: Any) -> Any:
        one = tools.storage.from_host(np.array(1, np.float32))
        return good.update(*arrays, correction1=one, correction2=one, **options)

    return Broken(good, update=update)


@fault(
    name="clipping-norm-overflows",
    slot="adam",
    url="https://github.com/tracel-ai/burn/issues/5699",
    report=(
        "Gradient clipping squared in the gradient's own precision, so a finite gradient of 300 in half precision "
        "had an infinite norm and was clipped to zero."
    ),
    summary=(
        "adam.update computes the norm as sqrt(sum(g*g)) in float32, infinite for gradients of 1e20, so the "
        "clipped gradient is 0 and finite still True."
    ),
)
def overflowing_norm(good: Any, tools: Tools) -> Broken:
    storage = tools.storage

    def update(
        params: Sequence[Any], grads: Sequence[Any], *moments: Sequence[Any], max_norm: float, **options: Any
    ) -> Any:
        hosts = [storage.to_host(g).astype(np.float32) for g in grads]
        with np.errstate(all="ignore"):
            squares = float(np.sum(np.array([(g * g).sum(dtype=np.float32) for g in hosts]), dtype=np.float32))
        finite = all(np.isfinite(g).all() for g in hosts)
        if math.isinf(max_norm) or math.isfinite(squares) or not finite:
            return good.update(params, grads, *moments, max_norm=max_norm, **options)
        clipped = [edited(storage, g, lambda host: host * 0) for g in grads]
        wrong = good.update(params, clipped, *moments, max_norm=max_norm, **options)
        norm = edited(storage, wrong.norm, lambda host: np.full_like(host, math.inf))
        return Adapted(wrong.params, wrong.first, wrong.second, norm, wrong.finite)

    return Broken(good, update=update)


@fault(
    name="adam-decay-after-step",
    slot="adam",
    url="https://github.com/bitsandbytes-foundation/bitsandbytes/issues/2010",
    report=(
        "Some backends applied the decoupled decay to the parameter after the moment step instead of to the old "
        "value, off by lr * decay times the step."
    ),
    summary=(
        "adam.update multiplies the already stepped parameter by (1 - lr * decay); visible only for large lr * decay."
    ),
)
def late_decay(good: Any, tools: Tools) -> Broken:
    storage = tools.storage

    def update(*arrays: Sequence[Any], lr: Any, decay: Sequence[float], **options: Any) -> Any:
        stepped = good.update(*arrays, lr=lr, decay=[0.0] * len(decay), **options)
        if not storage.to_host(stepped.finite):
            return stepped
        rate = float(storage.to_host(lr))
        shrunk = tuple(
            edited(storage, p, functools.partial(operator.mul, 1 - rate * each)) if each else p
            for p, each in zip(stepped.params, decay, strict=True)
        )
        return Adapted(shrunk, stepped.first, stepped.second, stepped.norm, stepped.finite)

    return Broken(good, update=update)


@fault(
    name="adam-step-scales-moment-in-place",
    slot="adam",
    url="https://github.com/yangluo7/CAME/issues/2",
    report=(
        "An in-place multiply of the update also scaled the stored first moment when the parameter was a vector, "
        "for both names pointed at one array."
    ),
    summary=(
        "adam.update returns first moments multiplied by lr for rank-1 tensors; matrices are right, the parameters"
        " of the present step are right."
    ),
)
def scaled_moment(good: Any, tools: Tools) -> Broken:
    storage = tools.storage

    def update(*arrays: Sequence[Any], lr: Any, **options: Any) -> Any:
        right = good.update(*arrays, lr=lr, **options)
        if not storage.to_host(right.finite):
            return right
        rate = float(storage.to_host(lr))
        first = tuple(edited(storage, m, lambda host: host * rate) if len(m.shape) == 1 else m for m in right.first)
        return Adapted(right.params, first, right.second, right.norm, right.finite)

    return Broken(good, update=update)


FAULTS = (
    scaled_eps,
    coupled_decay,
    uncorrected,
    overflowing_norm,
    late_decay,
    scaled_moment,
)
