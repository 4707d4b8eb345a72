"""Truth of the cross entropy and of its derivative."""

from __future__ import annotations

import numpy as np

from .arrays import Array, quiet
from .indexing import gather_last
from .softmax import log_softmax, softmax


@quiet
def cross_entropy(logits: Array, targets: Array, weights: Array | None, /, *, ignore: int) -> Array:
    """-sum(w log softmax(logits)[target]) / sum(w), of rank 0, over the targets that differ from `ignore`.

    logits: (N, V), targets: (N,), weights: (N,) or None for ones. 0 where the weights sum to 0.
    Source: Bishop 2006, eq. 4.108, as a weighted mean.
    """
    w, total = _weighed(targets, weights, ignore)
    classes = np.where(targets != ignore, targets, 0)
    surprise = -gather_last(log_softmax(logits), classes)
    return ((w * surprise).sum(axis=0, keepdims=True) / total).reshape(())


@quiet
def cross_entropy_grad(logits: Array, targets: Array, weights: Array | None, /, *, ignore: int) -> tuple[Array, Array]:
    """The loss, and its gradient for logits: (softmax(logits) - onehot(targets)) w / sum(w).

    Source: Bishop 2006, eq. 4.109 before the product with the features.
    """
    w, total = _weighed(targets, weights, ignore)
    rows, classes = logits.shape
    p = softmax(logits)
    hit = targets.reshape((rows, 1)) == np.arange(classes)
    gradient = np.where(hit, p - 1.0, p) * (w / total).reshape((rows, 1))
    return cross_entropy(logits, targets, weights, ignore=ignore), gradient


def _weighed(targets: Array, weights: Array | None, ignore: int) -> tuple[Array, Array]:
    """w, 0 where ignored: (N,), and its sum: (1,), replaced by 1 where that is 0 and every w with it."""
    w = np.where(targets != ignore, 1.0 if weights is None else weights, 0.0)
    total = w.sum(axis=0, keepdims=True)
    return w, np.where(total > 0, total, 1.0)
