"""The storage slot: MLX arrays, which share the machine's memory with the host."""

from __future__ import annotations

from importlib.metadata import version

import mlx.core as mx
import numpy as np

from turret.spi import Device, DType, Host, Memory, Shape, host_dtype

from .arrays import NAMES, NATIVE, native
from .stream import Stream, X


class MetalStorage:
    """Everything stays lazy until `to_host` or `synchronize`; a result in another thread is the same array."""

    def __init__(self, do: Stream) -> None:
        self._do = do

    def from_host(self, host: Host, /, *, dtype: DType | None = None) -> X:
        self._do.refuse_while_tracing("storage.from_host")
        self._do.check()
        name = dtype or NAMES[native(host.dtype.name)]
        wanted = native(name)
        with np.errstate(all="ignore"):
            made = mx.array(np.array(host, host_dtype(name), order="C"))
        return made if made.dtype == wanted else self._do(mx.astype, made, wanted)

    def to_host(self, x: X, /) -> Host:
        self._do.refuse_while_tracing("storage.to_host")
        if x.dtype == mx.bfloat16:
            x = self._do(mx.astype, x, mx.float32)
        self._do.wait(x)
        return np.array(x, order="C")

    def full(self, shape: Shape, value: float, /, *, dtype: DType) -> X:
        wanted = native(dtype)
        with np.errstate(all="ignore"):
            one = mx.array(np.asarray(value, host_dtype(dtype)))
        return self._do(mx.full, shape, one if one.dtype == wanted else self._do(mx.astype, one, wanted))

    def arange(self, stop: int, /) -> X:
        return self._do(mx.arange, stop, dtype=mx.int32)

    def cast(self, x: X, dtype: DType, /) -> X:
        wanted = native(dtype)
        return x if x.dtype == wanted else self._do(mx.astype, x, wanted)

    def copy(self, x: X, /) -> X:
        return self._do(mx.contiguous, x)

    def dtype_of(self, x: X, /) -> DType:
        return NAMES[x.dtype]

    def synchronize(self, *arrays: X) -> None:
        if arrays:
            self._do.refuse_while_tracing("storage.synchronize")
            self._do.wait(*arrays)

    def memory(self) -> Memory | None:
        """MLX counts for the process: both devices and every opening together, the highest use since its start."""
        used = mx.get_active_memory()
        return Memory(
            used_bytes=used, peak_bytes=max(used, mx.get_peak_memory()), total_bytes=max(used, self._do.total_bytes)
        )

    def device(self) -> Device:
        what = "Metal GPU, not run on Apple hardware yet" if self._do.on_gpu else "CPU device"
        kind = "gpu" if self._do.on_gpu else "cpu"
        return Device(
            name=f"MLX {version('mlx')}, {what}", kind=kind, dtypes=frozenset(NATIVE), flushes_subnormals=True
        )
