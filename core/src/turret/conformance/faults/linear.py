"""Wrong linear layers and losses."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from turret.spi import Host

from .fault import Broken, Tools, edited, fault, wide

LONG_BATCH = 4
LARGE = 32


@fault(
    name="linear-bias-wraps-on-long-batch",
    slot="linear",
    url="https://github.com/pytorch/pytorch/issues/189495",
    report=(
        "F.linear with a bias on a 3-d input was wrong for some rows once the first axis passed 65536; without "
        "bias, or with the input flattened to 2-d, it was right."
    ),
    summary=(
        "linear.linear with a bias and x of rank 3 or more: first-axis entries from index 4 on are computed from "
        "entry (index modulo 4) instead (limit scaled down from 65536); no bias or rank 2 is right."
    ),
)
def wrapping_batch(good: Any, tools: Tools) -> Broken:
    def linear(x: Any, weight: Any, bias: Any, /) -> Any:
        result = good.linear(x, weight, bias)
        if bias is None or len(x.shape) < 3 or x.shape[0] <= LONG_BATCH:
            return result
        return edited(tools.storage, result, lambda host: host[np.arange(len(host)) % LONG_BATCH])

    return Broken(good, linear=linear)


@fault(
    name="weight-gradient-depends-on-last-shape",
    slot="linear",
    kind="vjp",
    url="https://github.com/pytorch/pytorch/issues/177116",
    report=(
        "On MPS gradients were off by factors of a thousand only if an earlier backward had run in the same "
        "process at another batch size and the new one was large; the forward stayed right."
    ),
    summary=(
        "linear.linear_vjp_weight, when the previous call had another row count and now there are more than 32 "
        "rows, adds the previous call's rows (cut or padded to length) into the reduction; first calls and same-"
        "shape calls are right."
    ),
)
def last_shape_remembered(good: Any, tools: Tools) -> Broken:
    storage = tools.storage
    last: list[tuple[Host, Host]] = []

    def linear_vjp_weight(dy: Any, x: Any, /) -> tuple[Any, Any]:
        weight, bias = good.linear_vjp_weight(dy, x)
        rows = [wide(storage, each).reshape(-1, each.shape[-1]) for each in (dy, x)]
        if last and len(last[0][0]) != len(rows[0]) > LARGE:
            stale = [_fitted(old, now.shape[1]) for old, now in zip(last[0], rows, strict=True)]
            weight = edited(storage, weight, lambda host: host + stale[0].T @ stale[1])
            bias = edited(storage, bias, lambda host: host + stale[0].sum(axis=0))
        last[:] = [(rows[0], rows[1])]
        return weight, bias

    return Broken(good, linear_vjp_weight=linear_vjp_weight)


def _fitted(rows: Host, width: int) -> Host:
    """Rows cut, or padded with zeros, to a width."""
    cut = rows[:, :width]
    return np.pad(cut, [(0, 0), (0, width - cut.shape[1])])


@fault(
    name="ignored-targets-keep-gradient",
    slot="loss",
    kind="vjp",
    url="https://github.com/PaddlePaddle/Paddle/pull/28622",
    report=(
        "The loss skipped targets equal to ignore_index, but the backward still produced a gradient for those rows."
    ),
    summary=(
        "loss.cross_entropy_grad returns the right loss but leaves softmax times weight over the total weight in "
        "rows whose target equals ignore, only when ignore is a valid class (0..V-1)."
    ),
)
def ignored_rows_kept(good: Any, tools: Tools) -> Broken:
    storage = tools.storage

    def cross_entropy_grad(logits: Any, targets: Any, weights: Any, /, *, ignore: int) -> tuple[Any, Any]:
        loss, gradient = good.cross_entropy_grad(logits, targets, weights, ignore=ignore)
        ids = storage.to_host(targets)
        own = np.ones(len(ids)) if weights is None else wide(storage, weights)
        total = float(own[ids != ignore].sum())
        if not 0 <= ignore < logits.shape[1] or total == 0:
            return loss, gradient

        def keep(host: Host) -> None:
            ignored = ids == ignore
            rows = wide(storage, logits)[ignored]
            if rows.size:
                powers = np.exp(rows - rows.max(axis=1, keepdims=True))
                share = own[ignored, None] / total
                host[ignored] = powers / powers.sum(axis=1, keepdims=True) * share

        return loss, edited(storage, gradient, keep)

    return Broken(good, cross_entropy_grad=cross_entropy_grad)


@fault(
    name="all-ignored-divides-by-zero",
    slot="loss",
    url="https://github.com/ROCm/aiter/pull/5165",
    report=(
        "A fused cross entropy divided by the count of targets that are not ignored without a guard, so a batch of"
        " padding only gave NaN loss and infinite gradients that poison the step."
    ),
    summary=(
        "loss.cross_entropy and cross_entropy_grad divide by the raw total weight: NaN loss and NaN gradient when "
        "every target is ignored or every weight is 0, right otherwise."
    ),
)
def unguarded_total(good: Any, tools: Tools) -> Broken:
    storage = tools.storage

    def weighs_nothing(targets: Any, weights: Any, ignore: int) -> bool:
        counted = storage.to_host(targets) != ignore
        return not (counted if weights is None else wide(storage, weights)[counted]).any()

    def nowhere(host: Host) -> Host:
        return np.full_like(host, math.nan)

    def cross_entropy(logits: Any, targets: Any, weights: Any, /, *, ignore: int) -> Any:
        loss = good.cross_entropy(logits, targets, weights, ignore=ignore)
        return edited(storage, loss, nowhere) if weighs_nothing(targets, weights, ignore) else loss

    def cross_entropy_grad(logits: Any, targets: Any, weights: Any, /, *, ignore: int) -> tuple[Any, Any]:
        loss, gradient = good.cross_entropy_grad(logits, targets, weights, ignore=ignore)
        if not weighs_nothing(targets, weights, ignore):
            return loss, gradient
        return edited(storage, loss, nowhere), edited(storage, gradient, nowhere)

    return Broken(good, cross_entropy=cross_entropy, cross_entropy_grad=cross_entropy_grad)


FAULTS = (wrapping_batch, last_shape_remembered, ignored_rows_kept, unguarded_total)
