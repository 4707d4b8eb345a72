"""The optimizer's update: measured, judged and only then written, each in one launch for some 48 tensors."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from turret.spi import Adapted

from .arrays import BOOL, FLOAT32, FLOAT64, SUFFIXES, Host, Native, by_value
from .library import X
from .place import THREADS, Place

# As in kernels/adam.cu.
MOST_ROWS, CHUNK = 48, 8192
ROW = np.dtype(
    [
        *((name, np.int64) for name in ("p", "new_p", "g", "m", "v", "new_m", "new_v", "size", "first_chunk")),
        ("decay", np.float64),
    ]
)
TABLE = np.dtype([("rows", np.int64), ("row", ROW, MOST_ROWS)])


@dataclass(frozen=True, slots=True, kw_only=True)
class _Launch:
    """Tensors of one dtype that share a launch, and the arrays whose addresses its table holds."""

    table: Host
    suffix: str
    chunks: int
    arrays: tuple[X, ...]


class CudaAdam:
    """Three passes: the norm, whether every result is finite, the results. Nothing is read on the host in between.

    Donated arrays are written in place where each of them is dense and lies apart from all others.
    """

    def __init__(self, place: Place) -> None:
        self._place = place

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
        place = self._place
        slopes = [place.dense(g) for g in grads]
        old = [[place.dense(x) for x in group] for group in (params, first, second)]
        donate = donate and all(place.may_write(x) for group in old for x in group)
        new = old if donate and _apart((params, first, second), slopes) else self._fresh(old)
        launches = list(_launches(old, new, slopes, decay))
        norm, finite, numbers = (place.empty((), dtype) for dtype in (FLOAT32, BOOL, FLOAT32))
        self._settle(launches, float(max_norm), numbers, norm, finite)
        settings = (numbers, lr, correction1, correction2, float(betas[0]), float(betas[1]), float(eps), finite)
        for step in ("judge", "write"):
            for each in launches:
                self._launch(f"{step}_{each.suffix}", each, *settings)
        return Adapted(tuple(new[0]), tuple(new[1]), tuple(new[2]), norm, finite)

    def _fresh(self, old: list[list[X]]) -> list[list[X]]:
        return [[self._place.empty(x.shape, x.dtype) for x in group] for group in old]

    def _settle(self, launches: list[_Launch], max_norm: float, numbers: X, norm: X, finite: X) -> None:
        count = sum(each.chunks for each in launches)
        sums, start = self._place.empty((count,), FLOAT64), 0
        for each in launches:
            self._launch(f"squares_{each.suffix}", each, sums[start : start + each.chunks])
            start += each.chunks
        self._place.launch("adam", "settle", 1, THREADS, sums, count, max_norm, numbers, norm, finite)

    def _launch(self, name: str, launch: _Launch, *operands: Any) -> None:
        self._place.hold(launch.arrays)
        self._place.launch("adam", name, launch.chunks, THREADS, launch.table, *operands)


def _launches(old: list[list[X]], new: list[list[X]], slopes: list[X], decay: Sequence[float]) -> Iterator[_Launch]:
    rows: dict[Native, list[tuple[tuple[X, ...], float]]] = {}
    for p, m, v, new_p, new_m, new_v, g, rate in zip(*old, *new, slopes, decay, strict=True):
        if p.size:
            rows.setdefault(p.dtype, []).append(((p, new_p, g, m, v, new_m, new_v), rate))
    for dtype, alike in rows.items():
        for start in range(0, len(alike), MOST_ROWS):
            yield _launch(alike[start : start + MOST_ROWS], SUFFIXES[dtype])


def _launch(rows: list[tuple[tuple[X, ...], float]], suffix: str) -> _Launch:
    table, chunks = np.zeros((), TABLE), 0
    table["rows"] = len(rows)
    for i, (arrays, rate) in enumerate(rows):
        size = arrays[0].size
        table["row"][i] = (*(x.data.ptr for x in arrays), size, chunks, rate)
        chunks += -(-size // CHUNK)
    return _Launch(
        table=by_value(table), suffix=suffix, chunks=chunks, arrays=tuple(x for arrays, _ in rows for x in arrays)
    )


def _apart(groups: Sequence[Sequence[X]], slopes: list[X]) -> bool:
    """Whether all arrays of the groups are dense, and none shares memory with another or with a gradient."""
    given = [x for group in groups for x in group]
    spans = sorted((x.data.ptr, x.data.ptr + x.nbytes) for x in (*given, *slopes) if x.size)
    return all(x.flags.c_contiguous for x in given) and all(a[1] <= b[0] for a, b in pairwise(spans))
