"""The flash attention slot: blocks of query rows, one after the other."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import mlx.core as mx

from turret.spi import Flashed

from .arrays import fold, like, wide
from .layout import cut
from .products import transposed_times
from .stream import Stream, X

ROWS = 64  # queries of a block


class MetalFlashAttention:
    """Memory linear in T: the scores of one block of queries, and of the few whose work MLX has queued.

    Each block waits for the one before, because MLX computes what is independent side by side, also in a compiled step.
    Keys that a block cannot see are not read. Within a block unseen scores count for nothing, and so do values that are
    not finite: where a query sees one, it is added at the end. The GPU takes the same operations: MLX's fused kernel
    tells no row statistics.
    """

    def __init__(self, do: Stream) -> None:
        self._do = do

    def attend(self, q: X, k: X, v: X, /, *, scale: float, offset: int) -> Flashed[X]:
        do, (b, t, h, _) = self._do, q.shape
        if not q.size:
            return Flashed(do(mx.zeros, q.shape, q.dtype), *(do(mx.zeros, (b, h, t), mx.float32) for _ in range(2)))
        queries, keys, values = self._grouped(q, k), self._turned(self._heads(k)), self._heads(v)
        finite, parts = self._finite(values), list[tuple[X, X, X]]()
        for start, stop, width in _blocks(t, k.shape[1], offset):
            rows = do.after(cut(do, queries, 2, start, stop), *(parts[-1] if parts else ()))
            scores, seen = self._scores(rows, cut(do, keys, 2, 0, width), scale, offset + start)
            masked = do(mx.where, seen, scores, -math.inf)
            row_max = fold(do, mx.max, masked, axis=-1, keepdims=True)
            weights = do(mx.exp, do(mx.subtract, masked, row_max))
            row_sum = fold(do, mx.sum, weights, axis=-1, keepdims=True)
            mixed = do(mx.matmul, self._flat(weights), cut(do, finite, 1, 0, width))
            parts.append((do(mx.divide, do(mx.reshape, mixed, (*rows.shape[:3], -1)), row_sum), row_max, row_sum))
        out, row_max, row_sum = (do(mx.concatenate, list(each), axis=2) for each in zip(*parts, strict=True))
        out = self._ungrouped(do(mx.add, out, self._spoilt(values, finite, offset, t)), q)
        return Flashed(like(do, out, q), *(do(mx.reshape, x, (b, h, t)) for x in (row_max, row_sum)))

    def attend_vjp(self, dy: X, q: X, k: X, v: X, saved: Flashed[X], /, *, scale: float, offset: int) -> tuple[X, X, X]:
        """P = exp(scores - row_max) / row_sum; dv = P^T dy; dS = scale P (dy v^T - dy out); dq = dS k; dk = dS^T q.

        Source: Dao et al. 2022, appendix B.4. The sums over the queries, also those of one group, run block by block.
        """
        do, t, s = self._do, q.shape[1], k.shape[1]
        if not q.size:
            return do(mx.zeros, q.shape, q.dtype), do(mx.zeros, k.shape, k.dtype), do(mx.zeros, v.shape, v.dtype)
        # what is made of them is not equal to what the forward pass made: MLX would merge both and keep it till here
        q, k, v = (do.after(x, dy) for x in (q, k, v))
        heads = self._heads(k)
        finite, keys, values = self._finite(heads), self._turned(heads), self._turned(self._finite(self._heads(v)))
        by_row = self._by_row(dy, q, k, saved)
        dk = dv = do(mx.zeros, heads.shape)
        dqs: list[X] = []
        for start, stop, width in _blocks(t, s, offset):
            rows, plain, slopes, statistics = by_row(start, stop)
            rows = do.after(rows, *dqs[-1:], dk, dv)
            scores, seen = self._scores(rows, cut(do, keys, 2, 0, width), scale, offset + start)
            dp = do(mx.reshape, do(mx.matmul, slopes, cut(do, values, 2, 0, width)), scores.shape)
            p, ds = (self._flat(do(mx.where, seen, x, 0.0)) for x in self._rebuilt(scores, dp, statistics, scale))
            dqs.append(do(mx.reshape, do(mx.matmul, ds, cut(do, finite, 1, 0, width)), (*rows.shape[:3], -1)))
            unseen = [(0, 0), (0, s - width), (0, 0)]
            dk = do(mx.add, dk, do(mx.pad, transposed_times(do, ds, plain), unseen))
            dv = do(mx.add, dv, do(mx.pad, transposed_times(do, p, slopes), unseen))
        dq = self._ungrouped(do(mx.concatenate, dqs, axis=2), q)
        return like(do, dq, q), like(do, self._unheads(dk, k), k), like(do, self._unheads(dv, v), v)

    def _by_row(self, dy: X, q: X, k: X, saved: Flashed[X]) -> Callable[[int, int], tuple[X, X, X, tuple[X, X, X]]]:
        """Cuts a block out of what has a row for each query.

        These are q; q where it is finite; dy; and row_max, row_sum and sum(dy out).
        """
        do, queries = self._do, self._grouped(q, k)
        product = do(mx.multiply, wide(do, dy), wide(do, saved.out))
        inner = self._grouped(fold(do, mx.sum, product, axis=-1, keepdims=True), k)
        statistics = (*(do(mx.reshape, x, inner.shape) for x in (saved.row_max, saved.row_sum)), inner)
        arrays = (queries, self._finite(queries), self._grouped(dy, k), *statistics)

        def block(start: int, stop: int) -> tuple[X, X, X, tuple[X, X, X]]:
            rows, plain, slopes, top, total, mean = (cut(do, x, 2, start, stop) for x in arrays)
            return rows, self._flat(plain), self._flat(slopes), (top, total, mean)

        return block

    def _scores(self, rows: X, keys: X, scale: float, first: int) -> tuple[X, X]:
        """Scaled scores of queries that stand at `first` and on, (B K, G, R, W), and which of them count, (R, W)."""
        do, count, width = self._do, rows.shape[2], keys.shape[2]
        product = do(mx.reshape, do(mx.matmul, self._flat(rows), keys), (*rows.shape[:3], width))
        places = do(mx.reshape, do(mx.arange, first, first + count, dtype=mx.int32), (count, 1))
        return do(mx.multiply, product, scale), do(mx.less_equal, do(mx.arange, width, dtype=mx.int32), places)

    def _rebuilt(self, scores: X, dp: X, statistics: tuple[X, X, X], scale: float) -> tuple[X, X]:
        """P and dS, which mean nothing where the score does not count."""
        do, (row_max, row_sum, inner) = self._do, statistics
        p = do(mx.divide, do(mx.exp, do(mx.subtract, scores, row_max)), row_sum)
        return p, do(mx.multiply, do(mx.multiply, p, do(mx.subtract, dp, inner)), scale)

    def _finite(self, x: X) -> X:
        return self._do(mx.where, self._do(mx.isfinite, x), x, 0.0)

    def _spoilt(self, values: X, finite: X, offset: int, queries: int) -> X:
        """The sum of what is not finite among the values that each query sees, 0 for most: (B K, 1, T, d)."""
        do, keys = self._do, values.shape[1]
        rest = do(mx.cumsum, do(mx.where, do(mx.isfinite, values), 0.0, values), axis=1)
        last = do(mx.minimum, do(mx.arange, offset, offset + queries, dtype=mx.int32), keys - 1)
        return do(mx.expand_dims, do(mx.take, rest, last, axis=1), 1)

    def _grouped(self, x: X, k: X) -> X:
        """(B, T, H, d) to (B K, G, T, d), the query heads of one key-value head together; halves as float32."""
        do, (b, t, h, d), kv = self._do, x.shape, k.shape[2]
        return do(mx.reshape, do(mx.contiguous, do.view(mx.swapaxes, wide(do, x), 1, 2)), (b * kv, h // kv, t, d))

    def _ungrouped(self, x: X, q: X) -> X:
        do, (b, t, h, d) = self._do, q.shape
        return do(mx.swapaxes, do(mx.reshape, x, (b, h, t, d)), 1, 2)

    def _heads(self, x: X) -> X:
        """(B, S, K, d) to (B K, S, d); halves as float32."""
        do, (b, s, kv, d) = self._do, x.shape
        return do(mx.reshape, do(mx.contiguous, do.view(mx.swapaxes, wide(do, x), 1, 2)), (b * kv, s, d))

    def _unheads(self, x: X, model: X) -> X:
        do, (b, s, kv, d) = self._do, model.shape
        return do(mx.swapaxes, do(mx.reshape, x, (b, kv, s, d)), 1, 2)

    def _turned(self, x: X) -> X:
        """(B K, S, d) to (B K, d, S); see `products` for the copy."""
        do, turned = self._do, self._do.view(mx.swapaxes, x, 1, 2)
        return turned if do.on_gpu else do(mx.contiguous, turned)

    def _flat(self, x: X) -> X:
        """(B K, G, R, n) to (B K, G R, n)."""
        return self._do(mx.reshape, x, (x.shape[0], x.shape[1] * x.shape[2], x.shape[3]))


def _blocks(queries: int, keys: int, offset: int) -> Iterator[tuple[int, int, int]]:
    """First and last query of each block, and how many keys its last one sees."""
    for start in range(0, queries, ROWS):
        stop = min(start + ROWS, queries)
        yield start, stop, min(keys, offset + stop)
