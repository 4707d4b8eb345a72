"""The storage slot: arrays are JAX arrays, committed to the opened device."""

from __future__ import annotations

import numpy as np

from turret.spi import CaptureError, Device, DType, Host, Memory, Shape

from .arrays import DTYPES, NAMES, X, native
from .library import jax, lax
from .place import Place
from .programs import program


class TpuStorage:
    """`from_host` and `to_host` are the only ways between host and device."""

    def __init__(self, place: Place) -> None:
        self._place = place
        here = jax.sharding.SingleDeviceSharding(place.device)
        self._full = program("shape", "dtype", out=here)(_full)
        self._arange = program("stop", out=here)(_arange)
        self._device = Device(
            name=f"JAX {jax.__version__}, {place.device.device_kind}" + ", interpreting Pallas" * place.interpret,
            kind=str(place.device.platform) if place.device.platform == "cpu" else f"tpu:{place.device.id}",
            dtypes=frozenset(DTYPES),
            flushes_subnormals=self._flushes_subnormals(),
        )

    def from_host(self, host: Host, /, *, dtype: DType | None = None) -> X:
        with np.errstate(all="ignore"):
            private = np.array(host, native(dtype or host.dtype.name), order="C")
        placed: X = self._place.run(jax.device_put, private, self._place.device)
        return placed

    def to_host(self, x: X, /) -> Host:
        if isinstance(x, jax.core.Tracer):
            raise CaptureError(
                f"to_host reads an array of shape {x.shape} in a function that is being compiled, where it has no "
                f"values yet; return it from the function and read it after the call"
            )
        host: Host = self._place.run(np.array, x, order="C")
        return host.astype(np.float32) if x.dtype == DTYPES["bfloat16"] else host

    def full(self, shape: Shape, value: float, /, *, dtype: DType) -> X:
        return self._place.run(self._full, value, shape=tuple(shape), dtype=native(dtype))

    def arange(self, stop: int, /) -> X:
        return self._place.run(self._arange, stop=stop)

    def cast(self, x: X, dtype: DType, /) -> X:
        wanted = native(dtype)
        return x if x.dtype == wanted else self._place.run(_cast, x, dtype=wanted)

    def copy(self, x: X, /) -> X:
        return self._place.run(copied, x)

    def dtype_of(self, x: X, /) -> DType:
        return NAMES[x.dtype]

    def synchronize(self, *arrays: X) -> None:
        self._place.run(jax.block_until_ready, arrays)

    def memory(self) -> Memory | None:
        told = self._place.device.memory_stats()
        if not told:
            return None
        return Memory(
            used_bytes=told["bytes_in_use"], peak_bytes=told["peak_bytes_in_use"], total_bytes=told["bytes_limit"]
        )

    def device(self) -> Device:
        return self._device

    def _flushes_subnormals(self) -> bool:
        small, smaller = (self.full((1,), value, dtype="float32") for value in (1e-30, 1e-10))
        return not self.to_host(self._place.run(program()(lax.mul), small, smaller))[0] > 0


def copied(x: X) -> X:
    """A fresh array of equal values where `x` is; no program has to be compiled for it."""
    fresh: X = jax.device_put(x, may_alias=False)
    return fresh


def _full(value: X, *, shape: Shape, dtype: np.dtype[np.generic]) -> X:
    return lax.broadcast(lax.convert_element_type(value, dtype), shape)


def _arange(*, stop: int) -> X:
    return lax.iota(np.int32, stop)


@program("dtype")
def _cast(x: X, *, dtype: np.dtype[np.generic]) -> X:
    return lax.convert_element_type(x, dtype)
