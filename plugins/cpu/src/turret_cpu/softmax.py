"""The softmax slot."""

from __future__ import annotations

from collections import Counter

from turret.derived.softmax import DerivedSoftmax
from turret.spi import Required

from .arrays import Rest, X, dense, kernel_ready
from .kernels import rows
from .memory import empty
from .threads import POOL


class CpuSoftmax:
    """A row is read from memory once and stays in cache for its later passes."""

    def __init__(self, required: Required[X], calls: Counter[str]) -> None:
        self._rest = Rest("softmax", DerivedSoftmax(required), calls)

    def softmax(self, x: X, /) -> X:
        return _forward(x, False) if kernel_ready(x) else self._rest().softmax(x)

    def log_softmax(self, x: X, /) -> X:
        return _forward(x, True) if kernel_ready(x) else self._rest().log_softmax(x)

    def softmax_vjp(self, dy: X, y: X, /) -> X:
        return _backward(dy, y, False) if kernel_ready(y) else self._rest().softmax_vjp(dy, y)

    def log_softmax_vjp(self, dy: X, y: X, /) -> X:
        return _backward(dy, y, True) if kernel_ready(y) else self._rest().log_softmax_vjp(dy, y)


def _forward(x: X, logarithm: bool) -> X:
    y, n = empty(x.shape), x.shape[-1]
    POOL.run(rows.softmax, 1.0 * x.size, dense(x), y, x.size // n, n, int(logarithm))
    return y


def _backward(dy: X, y: X, logarithm: bool) -> X:
    dx, n = empty(y.shape), y.shape[-1]
    POOL.run(rows.softmax_vjp, 0.5 * y.size, dense(dy), dense(y), dx, y.size // n, n, int(logarithm))
    return dx
