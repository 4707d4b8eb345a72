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
from .memory import empty
from .threads import POOL, address_of, float_word

Groups = tuple[tuple[X, ...], ...]


class CpuAdam:
    """All tensors in one parallel pass; bits do not depend on how tensors are cut into pages of 4,096.

    Where old arrays are given away, a first pass looks whether every result is finite and a second one writes in
    place, which costs less than one pass to memory that is not in cache. Otherwise results go to new arrays.
    """

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
        old = tuple(tuple(dense(x) for x in group) for group in (params, first, second))
        in_place = donate and _given(old, (params, first, second))
        new = old if in_place else tuple(tuple(empty(x.shape) for x in group) for group in old)
        table = _Table(old, new, [dense(g) for g in grads], decay)
        norm = table.norm()
        clip = min(1.0, max_norm / norm) if norm > 0 else 1.0
        corrections = 1 / float(correction1), 1 / float(correction2)
        numbers = [clip, betas[0], 1 - betas[0], betas[1], 1 - betas[1], *corrections, eps, float(lr)]
        with np.errstate(all="ignore"):
            stated, settings = np.asarray(norm, np.float32), np.array(numbers, np.float32)
        finite = bool(np.isfinite(stated)) and table.update(settings, write=not in_place)
        if not finite:
            return Adapted(tuple(params), tuple(first), tuple(second), stated, np.asarray(False))
        if in_place:
            table.update(settings, write=True)
        return Adapted(new[0], new[1], new[2], stated, np.asarray(True))


def _given(dense_groups: Groups, groups: Sequence[Sequence[X]]) -> bool:
    """Whether every array is the caller's own and not a copy that was made dense."""
    return all(
        x is y for some, others in zip(dense_groups, groups, strict=True) for x, y in zip(some, others, strict=True)
    )


class _Table:
    """The tensors of one update as rows of addresses. It keeps the arrays behind the addresses alive."""

    def __init__(self, old: Groups, new: Groups, grads: list[X], decay: Sequence[float]) -> None:
        self._kept = (old, new, grads)
        self._chunks = 0
        items = zip(zip(*old, *new, grads, strict=True), decay, strict=True)
        rows = [self._row(arrays, rate) for arrays, rate in items if arrays[0].size]
        self._rows, self._table = len(rows), np.array(rows or [[0] * COLUMNS], np.int64)

    def _row(self, arrays: tuple[X, ...], decay: float) -> list[int]:
        p, m, v, *rest = (address_of(x) for x in arrays)
        first_chunk, self._chunks = self._chunks, self._chunks + -(-arrays[0].size // CHUNK)
        return [p, rest.pop(), m, v, arrays[0].size, first_chunk, float_word(decay), *rest]

    def norm(self) -> float:
        """The Euclidean norm of all gradients; squares of float32 do not overflow float64."""
        if not self._rows:
            return 0.0
        sums = np.empty(self._chunks, np.float64)
        POOL.run(squares, 0.3 * CHUNK * self._chunks, self._table, self._rows, self._chunks, sums)
        with np.errstate(all="ignore"):
            return math.sqrt(float(sums.sum()))

    def update(self, settings: X, *, write: bool) -> bool:
        """Whether every result is finite; they are stored in the new arrays where `write` says so."""
        if not self._rows:
            return True
        work = 1.0 * CHUNK * self._chunks
        bad = np.zeros(POOL.shares(work), np.int32)
        POOL.run(update, work, self._table, self._rows, self._chunks, settings, bad, int(write))
        return not bad.any()
