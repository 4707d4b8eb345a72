"""The loss slot."""

from __future__ import annotations

from collections import Counter

import numpy as np

from turret.derived.loss import DerivedLoss
from turret.spi import Required

from .arrays import Rest, X, dense, kernel_ready
from .indexing import check_range
from .kernels.rows import cross_entropy
from .memory import empty
from .threads import POOL


class CpuLoss:
    """Loss and gradient in one pass over the logits; terms are added in float64."""

    def __init__(self, required: Required[X], calls: Counter[str]) -> None:
        self._rest = Rest("loss", DerivedLoss(required), calls)

    def cross_entropy(self, logits: X, targets: X, weights: X | None, /, *, ignore: int) -> X:
        if not kernel_ready(logits):
            return self._rest().cross_entropy(logits, targets, weights, ignore=ignore)
        return _loss(logits, targets, weights, ignore, None)

    def cross_entropy_grad(self, logits: X, targets: X, weights: X | None, /, *, ignore: int) -> tuple[X, X]:
        if not kernel_ready(logits):
            return self._rest().cross_entropy_grad(logits, targets, weights, ignore=ignore)
        gradient = empty(logits.shape)
        return _loss(logits, targets, weights, ignore, gradient), gradient


def _loss(logits: X, targets: X, weights: X | None, ignore: int, gradient: X | None) -> X:
    count, classes = logits.shape
    kept = targets != ignore
    shares = kept.astype(np.float64) if weights is None else np.where(kept, weights, 0).astype(np.float64)
    total = shares.sum()
    check_range(targets[kept], classes, "targets")
    with np.errstate(all="ignore"):
        weight = (shares / total if total > 0 else shares).astype(np.float32)
    terms = np.empty(count, np.float64)
    into = 0 if gradient is None else gradient
    operands = dense(logits), dense(targets), weight, terms
    POOL.run(cross_entropy, 0.8 * logits.size, *operands, into, count, classes)
    with np.errstate(all="ignore"):
        return np.asarray(terms.sum(), np.float32)
