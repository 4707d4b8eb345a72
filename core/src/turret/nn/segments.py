"""Rows of tokens that hold several texts, none of which sees another."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from turret.registry import OpenBackend
from turret.spi import Host, ShapeError
from turret.tensor import Tensor, ops, tensor

Spans = tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Segments:
    """Which tokens of rows (B, T) belong together, and at which position of its text each stands.

    ids: int32 (B, T), one number for each text of a row. positions: int32 (B, T), from 0 in each text. spans: where
    texts begin and end in the rows laid end to end: attention is then computed text by text, which is less work than
    whole rows. Without, it is computed over whole rows with a mask, by one program for all layouts.
    """

    ids: Tensor
    positions: Tensor
    spans: Spans | None = None

    @classmethod
    def of(cls, ids: Host, *, backend: OpenBackend | None = None) -> Segments:
        """Texts are runs of one number in `ids`, integers (B, T), that differ within a row. Raises: ShapeError."""
        if ids.ndim != 2 or 0 in ids.shape or ids.dtype.kind not in "iu":
            raise ShapeError(f"segments of shape {ids.shape} and dtype {ids.dtype}; wanted integers (B, T)")
        spans = text_spans(ids)
        places = np.concatenate([np.arange(stop - start, dtype=np.int32) for start, stop in spans])
        return cls(
            ids=tensor(ids.astype(np.int32), backend=backend),
            positions=tensor(places.reshape(ids.shape), backend=backend),
            spans=spans,
        )

    def attend(
        self, q: Tensor, k: Tensor, v: Tensor, *, scale: float, linear_memory: bool, drop: Callable[[Tensor], Tensor]
    ) -> Tensor:
        """Causal attention within texts. q: (B, T, H, d), k and v: (B, T, K, d); as q.

        drop: what becomes of the probabilities (B, H, T, T), where that is not nothing: only the mask can do that.
        """
        if q.shape[:2] != self.ids.shape:
            raise ShapeError(
                f"attention got q {q.shape} with segments of {self.ids.shape}; wanted equal rows and tokens"
            )
        if self.spans is None:
            return self._masked(q, k, v, scale, drop)
        end_to_end = [x.reshape(1, x.shape[0] * x.shape[1], *x.shape[2:]) for x in (q, k, v)]
        mixed = ops.segmented_attention(*end_to_end, scale=scale, spans=self.spans, linear_memory=linear_memory)
        return mixed.reshape(*q.shape)

    def _masked(self, q: Tensor, k: Tensor, v: Tensor, scale: float, drop: Callable[[Tensor], Tensor]) -> Tensor:
        """In float32, whatever the format of q."""
        (b, t, heads, size), groups = q.shape, k.shape[2]
        together = heads // groups
        rows = q.cast("float32").transpose(0, 2, 1, 3).reshape(b, groups, together * t, size)
        keys, values = (x.cast("float32").transpose(0, 2, 1, 3) for x in (k, v))
        scores = ops.matmul(rows, keys, transpose_b=True).reshape(b, heads, t, t) * scale
        same = ops.equal(self.ids.reshape(b, 1, t, 1), self.ids.reshape(b, 1, 1, t))
        seen = ops.logical_and(same, ops.causal_mask(q, queries=t, keys=t))
        weights = drop(ops.softmax(ops.where(seen, scores, -math.inf)))
        mixed = ops.matmul(weights.reshape(b, groups, together * t, t), values)
        return mixed.reshape(b, heads, t, size).transpose(0, 2, 1, 3).cast(q.dtype)


def text_spans(ids: Host) -> Spans:
    """(start, stop) of every run of one number in rows (B, T) laid end to end; no run passes the end of a row."""
    begins = np.ones(ids.shape, bool)
    begins[:, 1:] = ids[:, 1:] != ids[:, :-1]
    edges = [*np.flatnonzero(begins).tolist(), ids.size]
    return tuple(itertools.pairwise(edges))
