"""The matmul slot."""

from __future__ import annotations

import os

import mlx.core as mx

from turret.spi import DType

from .products import times_transposed
from .stream import Stream, X


class MetalMatmul:
    """MLX's product; see `products` for the one that is slow as it is."""

    def __init__(self, do: Stream) -> None:
        self._do = do

    def matmul(self, a: X, b: X, /, *, transpose_a: bool = False, transpose_b: bool = False) -> X:
        do = self._do
        left = do.view(mx.swapaxes, a, -1, -2) if transpose_a else a
        return times_transposed(do, left, b) if transpose_b else do(mx.matmul, left, b)

    def accumulation(self, dtype: DType, /) -> str:
        """Unstated where MLX may round float32 operands to TF32: on newer GPUs, unless MLX_ENABLE_TF32=0 was set."""
        narrowed = self._do.on_gpu and dtype == "float32" and os.environ.get("MLX_ENABLE_TF32") != "0"
        return "unstated" if narrowed else "float32"
