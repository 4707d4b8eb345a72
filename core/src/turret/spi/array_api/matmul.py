"""The matmul slot over an array API namespace."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from ..arrays import DType
from .dtypes import DTypes


class NamespaceMatmul:
    """Halves are widened before the product: what a library accumulates them in is not in the standard."""

    def __init__(
        self, xp: SimpleNamespace, dtypes: DTypes, accumulation: str, product: Callable[..., Any] | None
    ) -> None:
        self._xp, self._dtypes, self._accumulation = xp, dtypes, accumulation
        self._product = product or xp.matmul

    def matmul(self, a: Any, b: Any, /, *, transpose_a: bool = False, transpose_b: bool = False) -> Any:
        a = self._xp.matrix_transpose(a) if transpose_a else a
        b = self._xp.matrix_transpose(b) if transpose_b else b
        if not self._dtypes.is_half(a):
            return self._product(a, b)
        wide = self._dtypes.get("float32")
        return self._xp.astype(self._product(self._xp.astype(a, wide), self._xp.astype(b, wide)), a.dtype)

    def accumulation(self, dtype: DType, /) -> str:
        return self._accumulation
