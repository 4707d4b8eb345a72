"""Cross entropy from the log of row sums."""

from __future__ import annotations

from typing import Generic

from turret.spi import A, Required

from .ops import Ops

NEVER_A_CLASS = -1


class DerivedLoss(Generic[A]):
    """nll = log(sum(exp(x - max))) - (x - max)[target]; share = w / sum(w), 0 where ignored or weightless.

    loss = sum(share * nll); gradient = share * (softmax(x) - one_hot(target)).
    """

    def __init__(self, required: Required[A]) -> None:
        self._ops = Ops(required)

    def cross_entropy(self, logits: A, targets: A, weights: A | None, /, *, ignore: int) -> A:
        shifted, _, total = self._exponents(logits)
        safe, share = self._shares(targets, weights, ignore, shifted)
        return self._loss(shifted, total, safe, share)

    def cross_entropy_grad(self, logits: A, targets: A, weights: A | None, /, *, ignore: int) -> tuple[A, A]:
        o = self._ops
        shifted, exponents, total = self._exponents(logits)
        safe, share = self._shares(targets, weights, ignore, shifted)
        loss = self._loss(shifted, total, safe, share)
        hit = o.equal(o.reshape(safe, (*safe.shape, 1)), o.arange(logits.shape[-1]))
        probabilities = o.divide(exponents, total)
        error = o.where(hit, o.subtract(probabilities, 1.0), probabilities)
        return loss, o.like(o.multiply(error, o.reshape(share, (*share.shape, 1))), logits)

    def _exponents(self, logits: A) -> tuple[A, A, A]:
        o = self._ops
        wide = o.wide(logits)
        shifted = o.subtract(wide, o.max(wide, axis=-1, keepdims=True))
        exponents = o.exp(shifted)
        return shifted, exponents, o.sum(exponents, axis=-1, keepdims=True)

    def _shares(self, targets: A, weights: A | None, ignore: int, model: A) -> tuple[A, A]:
        """Targets fit for a gather, and what fraction of the loss each row is, in the dtype of `model`."""
        o = self._ops
        # an `ignore` that int32 cannot hold matches no target; neither does -1, as a target is a class or `ignore`
        ignored = o.equal(targets, ignore if -(2**31) <= ignore < 2**31 else NEVER_A_CLASS)
        safe = o.where(ignored, 0, targets)
        kept = o.where(ignored, 0.0, o.full(targets.shape, 1.0, dtype="float32") if weights is None else weights)
        kept = o.like(kept, model)
        total = o.sum(kept, axis=0)
        return safe, o.divide(kept, o.where(o.equal(total, 0.0), 1.0, total))

    def _loss(self, shifted: A, total: A, safe: A, share: A) -> A:
        o = self._ops
        nll = o.subtract(o.log(o.reshape(total, safe.shape)), o.gather_last(shifted, safe))
        # a row that counts for nothing must not bring an infinite nll along
        return o.sum(o.multiply(o.where(o.equal(share, 0.0), 0.0, nll), share), axis=0)
