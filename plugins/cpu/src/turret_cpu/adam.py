"""The optimizer's update: measured, computed and checked before anything is written."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

import numpy as np

from turret.derived.adam import DerivedAdam
from turret.spi import Adapted, Required

from .arrays import Rest, X, dense
from .kernels.update import CHUNK, COLUMNS, squares, update
from .threads import POOL, address_of, float_word


class CpuAdam:
    """All tensors in one parallel pass; bits do not depend on how tensors are cut into pages of 4,096."""

    def __init__(self, required: Required[X], calls: Counter[str]) -> None:
        self._rest = Rest("adam", DerivedAdam(required), calls)

    def update(
        self,
        params: Sequence[X],
        grads: Sequence[X],
        first: Sequence[X],
        second: Sequence[X],
        /,
        *,
        lr: X,
        correction1: X,
        correction2: X,
        betas: tuple[float, float],
        eps: float,
        decay: Sequence[float],
        max_norm: float,
        donate: bool,
    ) -> Adapted[X]:
        if any(x.dtype != np.float32 for group in (params, grads) for x in group):
            return self._rest().update(
                params, grads, first, second, lr=lr, correction1=correction1, correction2=correction2,
                betas=betas, eps=eps, decay=decay, max_norm=max_norm, donate=donate,
            )  # fmt: skip
        p, m, v = (tuple(_own(x, donate) for x in group) for group in (params, first, second))
        table = _Table(p, m, v, [dense(g) for g in grads], decay)
        norm = table.norm()
        clip = min(1.0, max_norm / norm) if norm > 0 else 1.0
        corrections = 1 / float(correction1), 1 / float(correction2)
        numbers = [clip, betas[0], 1 - betas[0], betas[1], 1 - betas[1], *corrections, eps, float(lr)]
        with np.errstate(all="ignore"):
            stated, settings = np.asarray(norm, np.float32), np.array(numbers, np.float32)
        finite = bool(np.isfinite(stated)) and table.update(settings, write=False)
        if finite:
            table.update(settings, write=True)
        return Adapted(p, m, v, stated, np.asarray(finite))


def _own(x: X, donate: bool) -> X:
    return x if donate and x.flags.carray else np.array(x, order="C")


class _Table:
    """The tensors of one update as rows of addresses. It keeps the arrays behind the addresses alive."""

    def __init__(
        self, params: Sequence[X], first: Sequence[X], second: Sequence[X], grads: list[X], decay: Sequence[float]
    ) -> None:
        self._kept = (params, first, second, grads)
        self._chunks = 0
        rows = [self._row(*item) for item in zip(*self._kept, decay, strict=True) if item[0].size]
        self._rows, self._table = len(rows), np.array(rows or [[0] * COLUMNS], np.int64)

    def _row(self, p: X, m: X, v: X, g: X, decay: float) -> list[int]:
        addresses = [address_of(x) for x in (p, g, m, v)]
        first_chunk, self._chunks = self._chunks, self._chunks + -(-p.size // CHUNK)
        return [*addresses, p.size, first_chunk, float_word(decay)]

    def norm(self) -> float:
        """The Euclidean norm of all gradients; squares of float32 do not overflow float64."""
        if not self._rows:
            return 0.0
        sums = np.empty(self._chunks, np.float64)
        POOL.run(squares, 0.3 * CHUNK * self._chunks, self._table, self._rows, self._chunks, sums)
        with np.errstate(all="ignore"):
            return math.sqrt(float(sums.sum()))

    def update(self, settings: X, *, write: bool) -> bool:
        """Whether every result is finite; they are stored where `write` says so."""
        if not self._rows:
            return True
        work = 1.0 * CHUNK * self._chunks
        bad = np.zeros(POOL.shares(work), np.int32)
        POOL.run(update, work, self._table, self._rows, self._chunks, settings, bad, int(write))
        return not bad.any()
