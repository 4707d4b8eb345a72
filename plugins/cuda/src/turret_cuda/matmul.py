"""The matmul slot."""

from __future__ import annotations

from turret.spi import DType

from .cublas import tf32_was_asked_for
from .library import X
from .place import Place
from .products import product


class CudaMatmul:
    """cuBLAS: halves are added up in float32; operands that are transposed views or rows of a slice are not copied."""

    def __init__(self, place: Place) -> None:
        self._place = place

    def matmul(self, a: X, b: X, /, *, transpose_a: bool = False, transpose_b: bool = False) -> X:
        m, n = a.shape[-1 if transpose_a else -2], b.shape[-2 if transpose_b else -1]
        out = self._place.empty((*a.shape[:-2], m, n), a.dtype)
        product(self._place, out, a, b, transpose_a=transpose_a, transpose_b=transpose_b)
        return out

    def accumulation(self, dtype: DType, /) -> str:
        """float32 operands are rounded to TF32 only where CuPy's own variable CUPY_TF32 asks for that."""
        if dtype == "float64":
            return "float64"
        return "tf32" if dtype == "float32" and tf32_was_asked_for() else "float32"
