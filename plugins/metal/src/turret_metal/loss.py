"""The loss slot."""

from __future__ import annotations

import mlx.core as mx

from .arrays import fold, like, wide
from .stream import Stream, X

NEVER_A_CLASS = -1


class MetalLoss:
    """nll = log(sum(exp(x - max))) - (x - max)[target]; share = w / sum(w), 0 where ignored or weightless.

    loss = sum(share * nll); gradient = share * (softmax(x) - one_hot(target)).
    """

    def __init__(self, do: Stream) -> None:
        self._do = do

    def cross_entropy(self, logits: X, targets: X, weights: X | None, /, *, ignore: int) -> X:
        shifted, _, total = _exponents(self._do, logits)
        return self._loss(shifted, total, *self._shares(targets, weights, ignore))

    def cross_entropy_grad(self, logits: X, targets: X, weights: X | None, /, *, ignore: int) -> tuple[X, X]:
        do, (shifted, exponents, total) = self._do, _exponents(self._do, logits)
        safe, share = self._shares(targets, weights, ignore)
        loss = self._loss(shifted, total, safe, share)
        probabilities = do(mx.divide, exponents, total)
        hit = do(mx.equal, safe, do(mx.arange, logits.shape[-1], dtype=mx.int32))
        error = do(mx.where, hit, do(mx.subtract, probabilities, 1.0), probabilities)
        return loss, like(do, do(mx.multiply, error, share), logits)

    def _shares(self, targets: X, weights: X | None, ignore: int) -> tuple[X, X]:
        """Targets fit for a gather, and what fraction of the loss each row is: both (N, 1)."""
        do, column = self._do, _column(self._do, targets)
        # an `ignore` that int32 cannot hold matches no target; neither does -1, as a target is a class or `ignore`
        ignore = ignore if -(2**31) <= ignore < 2**31 else NEVER_A_CLASS
        counts = do(mx.not_equal, column, ignore)
        one = do(mx.astype, counts, mx.float32)
        kept = one if weights is None else do(mx.where, counts, _column(do, weights), 0.0)
        total = fold(do, mx.sum, kept)
        share = do(mx.divide, kept, do(mx.where, do(mx.equal, total, 0.0), 1.0, total))
        return do(mx.where, do(mx.equal, column, ignore), 0, column), share

    def _loss(self, shifted: X, total: X, safe: X, share: X) -> X:
        do = self._do
        nll = do(mx.subtract, do(mx.log, total), do(mx.take_along_axis, shifted, safe, axis=-1))
        # a row that counts for nothing must not bring an infinite nll along
        return fold(do, mx.sum, do(mx.where, do(mx.equal, share, 0.0), 0.0, do(mx.multiply, nll, share)))


def _exponents(do: Stream, logits: X) -> tuple[X, X, X]:
    """x - max of each row, its exponents, and their sum (N, 1)."""
    x = wide(do, logits)
    shifted = do(mx.subtract, x, fold(do, mx.max, x, axis=-1, keepdims=True))
    exponents = do(mx.exp, shifted)
    return shifted, exponents, fold(do, mx.sum, exponents, axis=-1, keepdims=True)


def _column(do: Stream, x: X) -> X:
    return do(mx.expand_dims, x, -1)
