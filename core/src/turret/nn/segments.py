"""Rows of tokens that hold several texts, none of which sees another."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np

from turret.registry import OpenBackend
from turret.spi import Host, ShapeError
from turret.tensor import Tensor, checkpoint, ops, tensor

from .regularization import ROWS

Spans = tuple[tuple[int, int], ...]
Drop = Callable[[Tensor], Tensor]


@dataclass(frozen=True, slots=True, kw_only=True)
class Segments:
    """Which tokens of rows (B, T) belong together, and at which position of its text each stands.

    ids: int32 (B, T), a number of its own for each text of a row. positions: int32 (B, T), from 0 in each text. spans:
    where texts begin and end in the rows laid end to end: attention is then computed text by text, which is less work
    than whole rows. Without, it is computed over whole rows with a mask, by one program for all layouts.
    """

    ids: Tensor
    positions: Tensor
    spans: Spans | None = None

    @classmethod
    def of(cls, ids: Host, *, backend: OpenBackend | None = None) -> Segments:
        """Texts are the runs of one number in `ids`, integers (B, T); runs are told apart, whatever their numbers.

        Raises: ShapeError.
        """
        if not isinstance(ids, np.ndarray) or ids.ndim != 2 or 0 in ids.shape or ids.dtype.kind not in "iu":
            got = f"{ids.shape} {ids.dtype}" if isinstance(ids, np.ndarray) else type(ids).__name__
            raise ShapeError(f"segments got {got}; wanted an array of integers (B, T)")
        spans = text_spans(ids)
        sizes = [stop - start for start, stop in spans]
        places = np.concatenate([np.arange(size, dtype=np.int32) for size in sizes])
        numbers = np.repeat(np.arange(len(spans), dtype=np.int32), sizes)
        return cls(
            ids=tensor(numbers.reshape(ids.shape), backend=backend),
            positions=tensor(places.reshape(ids.shape), backend=backend),
            spans=spans,
        )

    def attend(self, q: Tensor, k: Tensor, v: Tensor, *, scale: float, linear_memory: bool, drop: Drop) -> Tensor:
        """Causal attention within texts. q: (B, T, H, d), k and v: (B, T, K, d); as q.

        drop: what becomes of the probabilities (B, H, T, T), where that is not nothing: only the mask can do that.
        """
        if q.shape[:2] != self.ids.shape:
            raise ShapeError(
                f"attention got q {q.shape} with segments of {self.ids.shape}; wanted equal rows and tokens"
            )
        if self.spans is None:
            return self._by_rows(q, k, v, scale, drop) if linear_memory else self._masked(q, k, v, scale, drop, 0)
        end_to_end = [x.reshape(1, x.shape[0] * x.shape[1], *x.shape[2:]) for x in (q, k, v)]
        mixed = ops.segmented_attention(*end_to_end, scale=scale, spans=self.spans, linear_memory=linear_memory)
        return mixed.reshape(*q.shape)

    def _by_rows(self, q: Tensor, k: Tensor, v: Tensor, scale: float, drop: Drop) -> Tensor:
        """Probabilities of `ROWS` query rows are in memory at once, and are made again in the backward pass."""
        t = q.shape[1]

        def piece(start: int) -> Tensor:
            stop = min(start + ROWS, t)
            rows = partial(self._masked, scale=scale, drop=drop, start=start)
            return checkpoint(rows, q[:, start:stop], k[:, :stop], v[:, :stop])

        return ops.concatenate([piece(start) for start in range(0, t, ROWS)], axis=1)

    def _masked(self, q: Tensor, k: Tensor, v: Tensor, scale: float, drop: Drop, start: int) -> Tensor:
        """Queries from position `start` of the row on, in float32, whatever the format of q."""
        (b, t, heads, size), (_, s, groups, _) = q.shape, k.shape
        together = heads // groups
        rows = q.cast("float32").transpose(0, 2, 1, 3).reshape(b, groups, together * t, size)
        keys, values = (x.cast("float32").transpose(0, 2, 1, 3) for x in (k, v))
        scores = ops.matmul(rows, keys, transpose_b=True).reshape(b, heads, t, s) * scale
        own, others = self.ids[:, start : start + t], self.ids[:, :s]
        same = ops.equal(own.reshape(b, 1, t, 1), others.reshape(b, 1, 1, s))
        seen = ops.logical_and(same, ops.causal_mask(q, queries=t, keys=s, offset=start))
        weights = drop(ops.softmax(ops.where(seen, scores, -math.inf)))
        mixed = ops.matmul(weights.reshape(b, groups, together * t, s), values)
        return mixed.reshape(b, heads, t, size).transpose(0, 2, 1, 3).cast(q.dtype)


def text_spans(ids: Host) -> Spans:
    """(start, stop) of every run of one number in rows (B, T) laid end to end; no run passes the end of a row."""
    begins = np.ones(ids.shape, bool)
    begins[:, 1:] = ids[:, 1:] != ids[:, :-1]
    edges = [*np.flatnonzero(begins).tolist(), ids.size]
    return tuple(itertools.pairwise(edges))
