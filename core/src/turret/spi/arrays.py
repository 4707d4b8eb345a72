"""What core knows about an array: its shape. Everything else is asked of `storage`."""

from __future__ import annotations

from typing import Any, Literal, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

DType = Literal["float32", "int32", "bool", "uint8", "float16", "bfloat16", "float64", "int64"]
REQUIRED_DTYPES: tuple[DType, ...] = ("float32", "int32", "bool", "uint8")
DTYPES: tuple[DType, ...] = (*REQUIRED_DTYPES, "float16", "bfloat16", "float64", "int64")
FLOATS: frozenset[DType] = frozenset(("float32", "float16", "bfloat16", "float64"))
HALVES: frozenset[DType] = frozenset(("float16", "bfloat16"))

Shape = tuple[int, ...]
Host = npt.NDArray[Any]


class Array(Protocol):
    """An opaque native array, or a tracer standing for one.

    It deliberately has no `dtype`: native dtype objects do not compare across libraries. Ask `Storage.dtype_of`.
    """

    @property
    def shape(self) -> Shape:
        """Sizes, outermost first; `()` for a scalar."""
        ...


A = TypeVar("A", bound=Array)
A_co = TypeVar("A_co", bound=Array, covariant=True)


def host_dtype(dtype: DType) -> np.dtype[Any]:
    """The NumPy dtype that carries `dtype` on the host; bfloat16 travels widened to float32."""
    return np.dtype(np.float32) if dtype == "bfloat16" else np.dtype(dtype)
