"""The storage slot: CuPy arrays in the memory of one device."""

from __future__ import annotations

import cupy
import numpy as np

from turret.spi import BackendMismatch, Device, DType, Host, Memory, Shape, host_dtype

from .arrays import BFLOAT16, INT32, NAMES, NATIVE, SUFFIXES, Native, native
from .device import described, has_bfloat16
from .library import X, emulated
from .place import Place


class CudaStorage:
    """Everything is queued; `to_host` and `synchronize` wait."""

    def __init__(self, place: Place) -> None:
        self._place = place

    def from_host(self, host: Host, /, *, dtype: DType | None = None) -> X:
        place = self._place
        place.refuse_while_capturing("storage.from_host")
        wanted = native(dtype or NAMES[native(host.dtype.name)])
        made = place.empty(host.shape, wanted)
        if host.size:
            place.upload(made, rounded(host, wanted))
        return made

    def to_host(self, x: X, /) -> Host:
        place = self._place
        place.refuse_while_capturing("storage.to_host")
        name = NAMES[x.dtype]
        dense = place.dense(self.cast(x, "float32") if name == "bfloat16" else x)
        host = np.empty(x.shape, host_dtype(name))
        if host.size:
            place.download(dense, host.ctypes.data)
        else:
            place.wait("storage.to_host")
        return host

    def full(self, shape: Shape, value: float, /, *, dtype: DType) -> X:
        wanted = native(dtype)
        made = self._place.empty(shape, wanted)
        self._place.spread("copy", f"fill_{wanted.itemsize}", made.size, word(value, wanted), made, made.size)
        return made

    def arange(self, stop: int, /) -> X:
        made = self._place.empty((stop,), INT32)
        self._place.spread("copy", "arange", stop, made, stop)
        return made

    def cast(self, x: X, dtype: DType, /) -> X:
        return cast(self._place, x, native(dtype))

    def copy(self, x: X, /) -> X:
        return self._place.copied(x)

    def dtype_of(self, x: X, /) -> DType:
        """Raises: BackendMismatch for what is not an array of CuPy: core asks before it takes an array from outside."""
        if not isinstance(x, cupy.ndarray):
            raise BackendMismatch(
                f"{self._place.spec} got {type(x).__module__}.{type(x).__qualname__}, wanted its own cupy.ndarray; "
                f"bring host values in with turret.tensor(array, backend=...)"
            )
        return NAMES[x.dtype]

    def synchronize(self, *arrays: X) -> None:
        if arrays:
            self._place.wait("storage.synchronize")

    def memory(self) -> Memory | None:
        """The pool's memory, of every opening of this device in the process together."""
        used, peak, total = self._place.memory()
        return Memory(used_bytes=used, peak_bytes=peak, total_bytes=total)

    def device(self) -> Device:
        """CuPy compiles with -ftz=true and lets nobody say otherwise: kernels in float32 flush subnormal numbers."""
        return Device(
            name=described(self._place),
            kind=self._place.spec,
            dtypes=frozenset(NATIVE),
            storage_only=frozenset(() if has_bfloat16(self._place) else ("bfloat16",)),
            flushes_subnormals=not emulated(),
        )


def cast(place: Place, x: X, dtype: Native) -> X:
    """x in another dtype; x itself where it has that dtype."""
    if x.dtype == dtype:
        return x
    x = place.dense(x)
    made = place.empty(x.shape, dtype)
    place.spread("cast", f"cast_{SUFFIXES[x.dtype]}_{SUFFIXES[dtype]}", x.size, x, made, x.size)
    return made


def word(value: float, dtype: Native) -> int:
    """A scalar as kernels take it: its bits in the dtype, as a 64-bit integer."""
    bits = rounded(np.asarray(value), dtype).tobytes()
    return int.from_bytes(bits.ljust(8, b"\0"), "little", signed=True)


def rounded(host: Host, dtype: Native) -> Host:
    """Host values in another dtype, rounded once; what is out of range becomes an infinity."""
    with np.errstate(all="ignore"):
        if dtype == BFLOAT16 and host.dtype.itemsize > 2:
            host = _sticky(host)
        return host.astype(dtype, copy=False)


def _sticky(host: Host) -> Host:
    """In float32, with the last bit set where that is not exact: NumPy's way to bfloat16 leads through float32."""
    if host.dtype == np.int64:  # and through float64, where large numbers are not exact either
        large = (host >> 53 != 0) & (host >> 53 != -1) & (host & 1023 != 0)
        host = np.where(large, host & ~1023 | 1024, host)
    exact = host.astype(np.float64)
    near = exact.astype(np.float32)
    lower = np.where(np.abs(near) > np.abs(exact), np.nextafter(near, np.float32(0)), near)
    inexact = (near != exact) & ~np.isnan(exact)
    return np.asarray((lower.view(np.uint32) | inexact).view(np.float32))
