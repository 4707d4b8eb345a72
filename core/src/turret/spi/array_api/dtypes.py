"""Neutral dtype names to a namespace's dtypes and back."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..arrays import DTYPES, FLOATS, HALVES, DType, host_dtype
from ..errors import DTypeError


class DTypes:
    """Which dtypes the device has, learned from real arrays: a namespace may list what its device refuses."""

    def __init__(self, namespace: Any, device: Any) -> None:
        self.native: dict[DType, Any] = {}
        self._names: dict[Any, DType] = {}
        where = {} if device is None else {"device": device}
        for dtype in DTYPES:
            try:
                made = namespace.asarray(np.zeros((1,), host_dtype(dtype)), **where)
                if dtype == "bfloat16":
                    made = namespace.astype(made, namespace.bfloat16)
            except (AttributeError, RuntimeError, TypeError, ValueError):
                continue
            if self._names.setdefault(made.dtype, dtype) == dtype:  # JAX without x64 turns float64 into float32
                self.native[dtype] = made.dtype
        sample = namespace.asarray(np.zeros((1,), np.float32), **where)
        self.index = namespace.argmax(sample, axis=0).dtype  # int64, int32 or uint32: the library's own

    def get(self, dtype: DType) -> Any:
        """Raises: DTypeError for a dtype the device lacks."""
        if dtype in self.native:
            return self.native[dtype]
        raise DTypeError(
            f"dtype {dtype} is not available on this device; it has {', '.join(self.native)}; cast to one of them first"
        )

    def name(self, x: Any) -> DType:
        return self._names[x.dtype]

    def is_half(self, x: Any) -> bool:
        return self.name(x) in HALVES

    def scalar(self, dtype: DType, value: float) -> float | int | bool:
        """`value` as the kind of Python scalar that a dtype accepts."""
        if dtype in FLOATS:
            return float(value)
        return bool(value) if dtype == "bool" else int(value)
