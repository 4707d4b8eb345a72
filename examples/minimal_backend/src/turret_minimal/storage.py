"""The storage slot: host and device are one memory here, and still nothing may be shared across the border."""

from __future__ import annotations

from typing import Any, cast

import numpy as np
import numpy.typing as npt

from turret.spi import Device, DType, DTypeError, Host, Memory, Shape

X = npt.NDArray[Any]

DTYPES: tuple[DType, ...] = ("float32", "int32", "bool", "uint8", "float16", "float64", "int64")

# Infinities and NaN are answers, not incidents: every function that can meet one is decorated with this.
quiet = np.errstate(all="ignore")


def native(dtype: str) -> np.dtype[Any]:
    """NumPy's dtype of this name.

    Raises: DTypeError. The next best dtype would be a silent narrowing.
    """
    if dtype not in DTYPES:
        raise DTypeError(f"minimal has no {dtype}; wanted one of {', '.join(DTYPES)}; cast on the host first")
    return np.dtype(dtype)


class MinimalStorage:
    """Arrays are NumPy arrays, finished when they are returned."""

    @quiet
    def from_host(self, host: Host, /, *, dtype: DType | None = None) -> X:
        # A private copy: `asarray` would see what the caller writes into `host` later.
        return np.array(host, native(dtype or host.dtype.name), order="C")

    def to_host(self, x: X, /) -> Host:
        # A copy as well: the caller owns the result, and may write into it.
        return np.array(x, order="C")

    @quiet
    def full(self, shape: Shape, value: float, /, *, dtype: DType) -> X:
        # Never a cached array: two results may be donated together.
        return np.full(shape, value, native(dtype))

    def arange(self, stop: int, /) -> X:
        return np.arange(stop, dtype=np.int32)

    @quiet
    def cast(self, x: X, dtype: DType, /) -> X:
        return x.astype(native(dtype), copy=False)

    def copy(self, x: X, /) -> X:
        return np.array(x, order="C")

    def dtype_of(self, x: X, /) -> DType:
        # Names, because native dtype objects do not compare across libraries.
        return cast("DType", x.dtype.name)

    def synchronize(self, *arrays: X) -> None:
        """Nothing is ever pending. A lazy library would compute `arrays` here."""

    def memory(self) -> Memory | None:
        # None is an honest answer; zeros would be taken for measurements.
        return None

    def device(self) -> Device:
        return Device(name=f"NumPy {np.__version__}", kind="cpu", dtypes=frozenset(DTYPES))
