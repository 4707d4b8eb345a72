"""The loss slot."""

from __future__ import annotations

from .arrays import FLOAT64, SUFFIXES, statistics
from .library import X
from .place import Place
from .rows import MOST_THREADS, over_rows

NO_TARGET = 2**31  # int32 holds no such value


class CudaLoss:
    """nll = log(sum(exp(x - max))) - (x - max)[target]; share = w / sum(w), 0 where ignored or weightless.

    loss = sum(share * nll); gradient = share * (softmax(x) - one_hot(target)). Weights and terms are added in float64,
    in one order. A target that is neither a class nor `ignore` makes the loss NaN.
    """

    def __init__(self, place: Place) -> None:
        self._place = place

    def cross_entropy(self, logits: X, targets: X, weights: X | None, /, *, ignore: int) -> X:
        return self._loss(logits, targets, weights, ignore, None)

    def cross_entropy_grad(self, logits: X, targets: X, weights: X | None, /, *, ignore: int) -> tuple[X, X]:
        gradient = self._place.empty(logits.shape, logits.dtype)
        return self._loss(logits, targets, weights, ignore, gradient), gradient

    def _loss(self, logits: X, targets: X, weights: X | None, ignore: int, gradient: X | None) -> X:
        """The loss; its gradient is written where `gradient` is an array."""
        place, count = self._place, targets.shape[0]
        targets = place.dense(targets)
        weights = None if weights is None else place.dense(weights)
        ignore = ignore if -(2**31) <= ignore < 2**31 else NO_TARGET
        total, terms = place.empty((), FLOAT64), place.empty((count,), FLOAT64)
        loss = place.empty((), statistics(logits))
        counting = targets, weights, ignore
        place.launch("loss", "weigh", 1, MOST_THREADS, *counting, total, count)
        over_rows(place, "loss", "cross_entropy", logits, place.dense(logits), *counting, total, terms, gradient)
        place.launch("loss", f"add_{SUFFIXES[loss.dtype]}", 1, MOST_THREADS, terms, loss, count)
        return loss
