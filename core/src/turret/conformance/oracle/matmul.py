"""Truth of the matrix product."""

from __future__ import annotations

import numpy as np

from .arrays import Array, quiet


@quiet
def matmul(a: Array, b: Array, /, *, transpose_a: bool = False, transpose_b: bool = False) -> Array:
    """`op(a) @ op(b)` over the last two axes; `op` swaps them where its flag is set. a, b: equal leading axes.

    Source: c_ij = sum_k a_ik b_kj, Golub and Van Loan 2013, section 1.1.
    """
    left = np.swapaxes(a, -1, -2) if transpose_a else a
    right = np.swapaxes(b, -1, -2) if transpose_b else b
    return left @ right
