"""Wrong losses."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from turret.spi import Host

from .fault import Broken, Tools, edited, fault, new, wide

FEW = 8


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


@fault(
    name="loss-right-gradient-zero",
    slot="loss",
    kind="vjp",
    url="https://github.com/microsoft/DirectML/issues/740",
    report=(
        "The unreduced cross entropy gave right losses but an all-zero gradient, so a training run moved nothing "
        "for 450 steps while its loss curve looked alive."
    ),
    summary=(
        "loss.cross_entropy_grad returns a zero gradient when weights are given; loss values and the unweighted "
        "gradient are right."
    ),
)
def dead_gradient(good: Any, tools: Tools) -> Broken:
    def cross_entropy_grad(logits: Any, targets: Any, weights: Any, /, *, ignore: int) -> tuple[Any, Any]:
        loss, gradient = good.cross_entropy_grad(logits, targets, weights, ignore=ignore)
        return loss, gradient if weights is None else edited(tools.storage, gradient, lambda host: host * 0)

    return Broken(good, cross_entropy_grad=cross_entropy_grad)


@fault(
    name="loss-alone-returns-zero",
    slot="loss",
    url="https://github.com/linkedin/Liger-Kernel/issues/507",
    report=(
        "The fused loss returned 0 whenever the logits needed no gradient, i.e. in evaluation; training calls were"
        " right."
    ),
    summary="loss.cross_entropy returns 0 when N is below 8; cross_entropy_grad is right for all inputs.",
)
def nothing_without_gradient(good: Any, tools: Tools) -> Broken:
    def cross_entropy(logits: Any, targets: Any, weights: Any, /, *, ignore: int) -> Any:
        loss = good.cross_entropy(logits, targets, weights, ignore=ignore)
        return edited(tools.storage, loss, lambda host: host * 0) if logits.shape[0] < FEW else loss

    return Broken(good, cross_entropy=cross_entropy)


@fault(
    name="negative-ignore-not-honoured",
    slot="loss",
    url="https://github.com/pytorch/pytorch/issues/108148",
    report=(
        "On MPS ignore_index was not used: any target out of range, equal to it or not, silently gave a loss of "
        "zero without an error."
    ),
    summary=(
        "loss.cross_entropy and cross_entropy_grad with a negative ignore divide by the total weight of all "
        "targets, ignored ones included."
    ),
)
def all_targets_counted(good: Any, tools: Tools) -> Broken:
    storage = tools.storage

    def share(targets: Any, weights: Any, ignore: int) -> float:
        """What is counted over all there is."""
        ids = storage.to_host(targets)
        own = np.ones(len(ids)) if weights is None else wide(storage, weights)
        return float(own[ids != ignore].sum() / own.sum()) if ignore < 0 and own.sum() else 1.0

    def cross_entropy(logits: Any, targets: Any, weights: Any, /, *, ignore: int) -> Any:
        part = share(targets, weights, ignore)
        loss = good.cross_entropy(logits, targets, weights, ignore=ignore)
        return edited(storage, loss, lambda host: host * part)

    def cross_entropy_grad(logits: Any, targets: Any, weights: Any, /, *, ignore: int) -> tuple[Any, Any]:
        part = share(targets, weights, ignore)
        loss, gradient = good.cross_entropy_grad(logits, targets, weights, ignore=ignore)
        return edited(storage, loss, lambda host: host * part), edited(storage, gradient, lambda host: host * part)

    return Broken(good, cross_entropy=cross_entropy, cross_entropy_grad=cross_entropy_grad)


@fault(
    name="loss-loses-common-offset",
    slot="loss",
    url="https://github.com/pytorch/pytorch/pull/195829",
    report=(
        "In review a fused loss was found to rebuild log-sum-exp minus the target logit from large rounded "
        "numbers, so a large common offset of the logits gave a wrong loss."
    ),
    summary=(
        "loss.cross_entropy computes (max + log(sum)) - logit[target] with max + log(sum) rounded to float32, "
        "wrong by units for logits near 1e6 or above."
    ),
)
def rounded_offset(good: Any, tools: Tools) -> Broken:
    storage = tools.storage

    def cross_entropy(logits: Any, targets: Any, weights: Any, /, *, ignore: int) -> Any:
        loss = good.cross_entropy(logits, targets, weights, ignore=ignore)
        ids, rows = storage.to_host(targets), storage.to_host(logits)
        counted = ids != ignore
        own = (np.ones(len(ids)) if weights is None else wide(storage, weights))[counted]
        if rows.dtype != np.float32 or not own.sum():
            return loss
        rows, ids = rows[counted], ids[counted]
        top = rows.max(axis=1)
        length = top + np.log(np.exp(rows - top[:, None]).sum(axis=1))
        each = (length - rows[np.arange(len(ids)), ids]).astype(np.float64)
        return new(storage, np.asarray((own * each).sum() / own.sum()), loss)

    return Broken(good, cross_entropy=cross_entropy)


FAULTS = (
    ignored_rows_kept,
    unguarded_total,
    dead_gradient,
    nothing_without_gradient,
    all_targets_counted,
    rounded_offset,
)
