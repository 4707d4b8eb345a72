"""The loss slot."""

from __future__ import annotations

from .arrays import FLOAT32, X, choose, div, equal, like, mul, row_max, row_sum, sub, wide
from .indexing import gather_last
from .library import lax
from .place import Place
from .programs import program

NEVER_A_CLASS = -1


class TpuLoss:
    """nll = log(sum(exp(x - max))) - (x - max)[target]; share = w / sum(w), 0 where ignored or weightless.

    loss = sum(share * nll); gradient = share * (softmax(x) - one_hot(target)).
    """

    def __init__(self, place: Place) -> None:
        self._place = place

    def cross_entropy(self, logits: X, targets: X, weights: X | None, /, *, ignore: int) -> X:
        return self._place.run(_cross_entropy, logits, targets, weights, ignore=_as_target(ignore))

    def cross_entropy_grad(self, logits: X, targets: X, weights: X | None, /, *, ignore: int) -> tuple[X, X]:
        return self._place.run(_cross_entropy_grad, logits, targets, weights, ignore=_as_target(ignore))


def _as_target(ignore: int) -> int:
    """An `ignore` that int32 cannot hold matches no target; neither does -1, as a target is a class or `ignore`."""
    return ignore if -(2**31) <= ignore < 2**31 else NEVER_A_CLASS


@program("ignore")
def _cross_entropy(logits: X, targets: X, weights: X | None, *, ignore: int) -> X:
    shifted, _, total = _exponents(logits)
    safe, share = _shares(targets, weights, ignore)
    return _loss(shifted, total, safe, share)


@program("ignore")
def _cross_entropy_grad(logits: X, targets: X, weights: X | None, *, ignore: int) -> tuple[X, X]:
    shifted, exponents, total = _exponents(logits)
    safe, share = _shares(targets, weights, ignore)
    loss = _loss(shifted, total, safe, share)
    hit = equal(lax.broadcasted_iota(safe.dtype, logits.shape, 1), lax.expand_dims(safe, (1,)))
    probabilities = div(exponents, total)
    error = choose(hit, sub(probabilities, 1.0), probabilities)
    return loss, like(mul(error, lax.expand_dims(share, (1,))), logits)


def _exponents(logits: X) -> tuple[X, X, X]:
    """x - max, its exponentials, and their sum in each row."""
    y = wide(logits)
    shifted = sub(y, row_max(y))
    exponents = lax.exp(shifted)
    return shifted, exponents, row_sum(exponents)


def _shares(targets: X, weights: X | None, ignore: int) -> tuple[X, X]:
    """Targets fit for a gather, and what fraction of the loss each row is."""
    ignored = equal(targets, ignore)
    given = lax.full(targets.shape, 1, FLOAT32) if weights is None else weights
    kept = choose(ignored, 0.0, given)
    total = lax.reduce_sum(kept, (0,))
    return choose(ignored, 0, targets), div(kept, choose(equal(total, 0.0), 1.0, total))


def _loss(shifted: X, total: X, safe: X, share: X) -> X:
    nll = sub(lax.log(lax.reshape(total, safe.shape)), gather_last(shifted, safe))
    # a row that counts for nothing must not bring an infinite nll along
    return lax.reduce_sum(choose(equal(share, 0.0), 0.0, mul(nll, share)), (0,))
