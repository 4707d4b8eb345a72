"""The matmul slot."""

from __future__ import annotations

import math

import numpy as np

from turret.spi import DType

from .arrays import X, dense, kernel_ready
from .products import multiply


class CpuMatmul:
    """Our own product for float32, NumPy's for float64; halves go through float32."""

    def matmul(self, a: X, b: X, /, *, transpose_a: bool = False, transpose_b: bool = False) -> X:
        rows, depth = a.shape[:-3:-1] if transpose_a else a.shape[-2:]
        columns = b.shape[-2] if transpose_b else b.shape[-1]
        shape = (*a.shape[:-2], rows, columns)
        if a.dtype == np.float16:
            wide = self.matmul(
                a.astype(np.float32), b.astype(np.float32), transpose_a=transpose_a, transpose_b=transpose_b
            )
            with np.errstate(all="ignore"):
                return wide.astype(np.float16)
        if kernel_ready(a) and kernel_ready(b):
            sizes = (math.prod(a.shape[:-2]), rows, columns, depth)
            return multiply(dense(a), transpose_a, dense(b), transpose_b, None, sizes).reshape(shape)
        with np.errstate(all="ignore"):
            left, right = a.swapaxes(-1, -2) if transpose_a else a, b.swapaxes(-1, -2) if transpose_b else b
            return np.asarray(np.matmul(left, right))

    def accumulation(self, dtype: DType, /) -> str:
        return "float64" if dtype == "float64" else "float32"
