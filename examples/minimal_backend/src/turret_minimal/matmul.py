"""The matmul slot."""

from __future__ import annotations

import numpy as np

from turret.spi import DType

from .storage import X, quiet


class MinimalMatmul:
    """NumPy's product; halves go through float32."""

    @quiet
    def matmul(self, a: X, b: X, /, *, transpose_a: bool = False, transpose_b: bool = False) -> X:
        # The flags spare a copy where the library can read a matrix by columns. Equal leading axes were checked by
        # core, so that there is no broadcasting to care about.
        left = a.swapaxes(-1, -2) if transpose_a else a
        right = b.swapaxes(-1, -2) if transpose_b else b
        # Halves accumulate in float32: a float16 sum of ones stops growing at 2048.
        wide = np.float32 if a.dtype == np.float16 else a.dtype
        product = np.matmul(left.astype(wide, copy=False), right.astype(wide, copy=False))
        return np.asarray(product).astype(a.dtype, copy=False)

    def accumulation(self, dtype: DType, /) -> str:
        # Reports quote it, and tolerances on hardware with a reduced product (tf32) depend on it.
        return "float64" if dtype == "float64" else "float32"
