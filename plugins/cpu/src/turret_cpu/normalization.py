"""The normalization slot."""

from __future__ import annotations

from collections import Counter

import numpy as np

from turret.derived.normalization import DerivedNormalization
from turret.spi import Normed, Required

from .arrays import Rest, X, dense, kernel_ready
from .kernels import rows
from .memory import empty
from .threads import POOL


class CpuNormalization:
    """Gradients of weight and bias are summed per share of the rows, then over the shares, always in one order."""

    def __init__(self, required: Required[X], calls: Counter[str]) -> None:
        self._rest = Rest("normalization", DerivedNormalization(required), calls)

    def layer_norm(self, x: X, weight: X, bias: X, /, *, eps: float) -> Normed[X]:
        if not kernel_ready(x):
            return self._rest().layer_norm(x, weight, bias, eps=eps)
        d, stats = x.shape[-1], (*x.shape[:-1], 1)
        out, mean, rstd = empty(x.shape), empty(stats), empty(stats)
        operands = dense(x), dense(weight), dense(bias), out, mean, rstd
        POOL.run(rows.layer_norm, 0.5 * x.size, *operands, x.size // d, d, float(eps))
        return Normed(out, mean, rstd)

    def layer_norm_vjp(self, dy: X, x: X, weight: X, mean: X, rstd: X, /) -> tuple[X, X, X]:
        if not kernel_ready(x):
            return self._rest().layer_norm_vjp(dy, x, weight, mean, rstd)
        d, work = x.shape[-1], 0.8 * x.size
        dx, sums = empty(x.shape), np.zeros((POOL.shares(work), 2, d), np.float32)
        operands = dense(dy), dense(x), dense(weight), dense(mean), dense(rstd), dx, sums
        POOL.run(rows.layer_norm_vjp, work, *operands, x.size // d, d)
        with np.errstate(all="ignore"):
            dweight, dbias = sums.sum(axis=0)
        return dx, dweight, dbias

    def rms_norm(self, x: X, weight: X, /, *, eps: float) -> tuple[X, X]:
        if not kernel_ready(x):
            return self._rest().rms_norm(x, weight, eps=eps)
        d = x.shape[-1]
        out, rstd = empty(x.shape), empty((*x.shape[:-1], 1))
        POOL.run(rows.rms_norm, 0.3 * x.size, dense(x), dense(weight), out, rstd, x.size // d, d, float(eps))
        return out, rstd

    def rms_norm_vjp(self, dy: X, x: X, weight: X, rstd: X, /) -> tuple[X, X]:
        if not kernel_ready(x):
            return self._rest().rms_norm_vjp(dy, x, weight, rstd)
        d, work = x.shape[-1], 0.6 * x.size
        dx, sums = empty(x.shape), np.zeros((POOL.shares(work), d), np.float32)
        operands = dense(dy), dense(x), dense(weight), dense(rstd), dx, sums
        POOL.run(rows.rms_norm_vjp, work, *operands, x.size // d, d)
        with np.errstate(all="ignore"):
            return dx, sums.sum(axis=0)
