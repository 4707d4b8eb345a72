"""The storage slot over an array API namespace."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import numpy as np

from ..arrays import DType, Host, Shape, host_dtype
from ..required import Device, Memory
from .dtypes import DTypes
from .hooks import Hooks


class NamespaceStorage:
    """Creation goes to the device named at opening; what an operation makes stays where its inputs are."""

    def __init__(self, xp: SimpleNamespace, dtypes: DTypes, device: Any, name: str, hooks: Hooks) -> None:
        self._xp, self._dtypes, self._hooks = xp, dtypes, hooks
        self._where = {} if device is None else {"device": device}
        self._device = Device(
            name=name,
            kind="default" if device is None else str(device),
            dtypes=frozenset(dtypes.native),
            flushes_subnormals=self._flushes_subnormals(),
        )

    def from_host(self, host: Host, /, *, dtype: DType | None = None) -> Any:
        want = dtype or cast("DType", host.dtype.name)
        native = self._dtypes.get(want)
        with np.errstate(all="ignore"):
            private = np.array(host, dtype=host_dtype(want), order="C")  # `asarray` may alias what it is given
        made = self._xp.asarray(private, **self._where)
        return made if made.dtype == native else self._xp.astype(made, native)

    def to_host(self, x: Any, /) -> Host:
        if self._dtypes.name(x) == "bfloat16":
            x = self._xp.astype(x, self._dtypes.get("float32"))
        return np.array(x if self._hooks.to_host is None else self._hooks.to_host(x), order="C")

    def full(self, shape: Shape, value: float, /, *, dtype: DType) -> Any:
        native = self._dtypes.get(dtype)
        return self._xp.full(shape, self._dtypes.scalar(dtype, value), dtype=native, **self._where)

    def arange(self, stop: int, /) -> Any:
        return self._xp.arange(stop, dtype=self._dtypes.get("int32"), **self._where)

    def cast(self, x: Any, dtype: DType, /) -> Any:
        native = self._dtypes.get(dtype)
        return x if x.dtype == native else self._xp.astype(x, native)

    def copy(self, x: Any, /) -> Any:
        return self._xp.asarray(x, copy=True)

    def dtype_of(self, x: Any, /) -> DType:
        return self._dtypes.name(x)

    def synchronize(self, *arrays: Any) -> None:
        if arrays and self._hooks.synchronize is not None:
            self._hooks.synchronize(*arrays)
            return
        for x in arrays:
            if 0 not in x.shape:  # one element on the host means that all of them were computed
                self.to_host(x[(slice(0, 1),) * len(x.shape)])

    def memory(self) -> Memory | None:
        return None if self._hooks.memory is None else self._hooks.memory()

    def device(self) -> Device:
        return self._device

    def _flushes_subnormals(self) -> bool:
        small, smaller = (self.full((1,), value, dtype="float32") for value in (1e-30, 1e-10))
        return not self.to_host(self._xp.multiply(small, smaller))[0] > 0
