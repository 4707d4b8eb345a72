"""Slots of attention: materialized, memory-linear and paged.

Letters: B batch, T query length, S key length, H query heads, K key-value heads (H % K == 0, query head h reads
key-value head h // (H / K)), d head size. Scores are scale * q k^T, softmax in float32. Source: Vaswani et al. 2017,
eq. 1; grouped heads: Ainslie et al. 2023, section 2.2.
"""

from __future__ import annotations

from typing import Generic, NamedTuple, Protocol

from ..arrays import A


class CausalAttention(Protocol[A]):
    """q: (B, T, H, d); k and v: (B, S, K, d). Query i sees keys 0..offset+i; offset >= 0 and S >= 1, so it sees one."""

    def attend(self, q: A, k: A, v: A, /, *, scale: float, offset: int) -> tuple[A, A]:
        """Output (B, T, H, d) in q's dtype and probabilities (B, H, T, S) float32, exactly zero where unseen."""
        ...

    def attend_vjp(self, dy: A, q: A, k: A, v: A, probabilities: A, /, *, scale: float) -> tuple[A, A, A]:
        """Gradients for q, k and v. The probabilities carry the mask."""
        ...


class Flashed(NamedTuple, Generic[A]):
    """out: (B, T, H, d); row_max and row_sum: float32 (B, H, T), of the scaled scores."""

    out: A
    row_max: A
    row_sum: A


class FlashAttention(Protocol[A]):
    """The same function as CausalAttention in memory linear in T. Source: Dao et al. 2022, algorithms 1 and 4."""

    def attend(self, q: A, k: A, v: A, /, *, scale: float, offset: int) -> Flashed[A]:
        """Output and the row statistics from which the VJP rebuilds the probabilities."""
        ...

    def attend_vjp(self, dy: A, q: A, k: A, v: A, saved: Flashed[A], /, *, scale: float, offset: int) -> tuple[A, A, A]:
        """Gradients for q, k and v."""
        ...


class PagedAttention(Protocol[A]):
    """Keys and values in flat pools (pages * page, K, d): row of a token = page id * page + place in the page.

    Page 0 belongs to nobody: padding points at it. Pools are flat because a reshape of a pool is a copy of the pool
    on an eager library. Source: Kwon et al. 2023, section 4.1.
    """

    def append(self, k_pages: A, v_pages: A, k: A, v: A, slots: A, /, *, donate: bool) -> tuple[A, A]:
        """Pools with k and v (M, K, d) written at rows `slots`: int32 (M,), distinct outside page 0.

        `donate` allows writing into both pools.
        """
        ...

    def attend(self, q: A, k_pages: A, v_pages: A, page_table: A, starts: A, /, *, page: int, scale: float) -> A:
        """q: (R, T, H, d), page_table: int32 (R, W), starts: int32 (R,); returns (R, T, H, d).

        Query i of request r stands at starts[r] + i and sees positions 0..starts[r]+i of its pages. What lies beyond a
        request's length never matters, not even NaN.
        """
        ...
