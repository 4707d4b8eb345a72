"""The storage slot: arrays are NumPy arrays, so moving is copying."""

from __future__ import annotations

from typing import cast

import numpy as np

from turret.spi import Device, DType, DTypeError, Host, Memory, Shape

from .arrays import X
from .threads import POOL

DTYPES: tuple[DType, ...] = ("float32", "int32", "bool", "uint8", "float16", "float64", "int64")


def native(dtype: str) -> np.dtype[np.generic]:
    """NumPy's dtype of this name. Raises: DTypeError."""
    if dtype not in DTYPES:
        raise DTypeError(f"cpu has no {dtype}; wanted one of {', '.join(DTYPES)}; cast on the host first")
    return np.dtype(dtype)


class CpuStorage:
    """Host and device are one memory; results of `from_host`, `full` and `copy` are fresh all the same."""

    def from_host(self, host: Host, /, *, dtype: DType | None = None) -> X:
        kind = native(dtype or host.dtype.name)
        if host.dtype == kind:
            return np.array(host, order="C")
        with np.errstate(all="ignore"):
            return np.array(host, kind, order="C")

    def to_host(self, x: X, /) -> Host:
        return np.array(x, order="C")

    def full(self, shape: Shape, value: float, /, *, dtype: DType) -> X:
        return np.full(shape, value, native(dtype))

    def arange(self, stop: int, /) -> X:
        return np.arange(stop, dtype=np.int32)

    def cast(self, x: X, dtype: DType, /) -> X:
        with np.errstate(all="ignore"):
            return x.astype(native(dtype), copy=False)

    def copy(self, x: X, /) -> X:
        return np.array(x, order="C")

    def dtype_of(self, x: X, /) -> DType:
        return cast("DType", x.dtype.name)

    def synchronize(self, *arrays: X) -> None:
        """Nothing is ever pending."""

    def memory(self) -> Memory | None:
        return None

    def device(self) -> Device:
        return Device(
            name=f"NumPy {np.__version__}, {POOL.parts} threads",
            kind="cpu",
            dtypes=frozenset(DTYPES),
            storage_only=frozenset(("float16",)),
        )
