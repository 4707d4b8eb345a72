"""Wrong storage: what was uploaded is not what is kept."""

from __future__ import annotations

from typing import Any

import numpy as np

from turret.spi import DType, Host, host_dtype

from .fault import Broken, Remembered, Tools, fault

SHARED_FROM = 64


@fault(
    name="upload-aliases-host-buffer",
    slot="storage",
    url="https://github.com/jax-ml/jax/issues/37830",
    report=(
        "device_put on a CPU device kept sharing the buffer of a writeable NumPy array above a few dozen elements,"
        " so a later write to the host array changed the supposedly immutable device array."
    ),
    summary=(
        "storage.from_host keeps a view of the host array when it has 64 or more contiguous elements (a copy below"
        " that), so a later in-place write to the host array shows up in to_host."
    ),
)
def sharing_upload(good: Any, tools: Tools) -> Broken:
    shared = Remembered()

    def from_host(host: Host, /, *, dtype: DType | None = None) -> Any:
        x = good.from_host(host, dtype=dtype)
        plain = host.flags.c_contiguous and host.flags.writeable and host.size >= SHARED_FROM
        kept = good.dtype_of(x)
        if plain and kept != "bfloat16" and host.dtype == host_dtype(kept):
            shared.keep(x, (host, host.copy()))
        return x

    def to_host(x: Any, /) -> Host:
        if (buffers := shared.about(x)) is not None and buffers[0].tobytes() != buffers[1].tobytes():
            written: Host = buffers[0].copy()
            return written
        host: Host = good.to_host(x)
        return host

    return Broken(good, from_host=from_host, to_host=to_host)


@fault(
    name="upload-narrows-float64",
    slot="storage",
    url="https://github.com/jax-ml/jax/issues/652",
    report=(
        "An array requested as float64 silently became float32 because double precision was switched off, losing "
        "half of the digits."
    ),
    summary=(
        "storage.from_host given a float64 host array (or dtype='float64') returns a float32 array without an "
        "error, also on a device that declares float64, where dtype_of then disagrees with the request; on a "
        "device without float64 no DTypeError is raised."
    ),
)
def narrowing_upload(good: Any, tools: Tools) -> Broken:
    def from_host(host: Host, /, *, dtype: DType | None = None) -> Any:
        if (dtype or host.dtype.name) != "float64":
            return good.from_host(host, dtype=dtype)
        with np.errstate(all="ignore"):
            return good.from_host(host.astype(np.float32), dtype="float32")

    return Broken(good, from_host=from_host)


FAULTS = (sharing_upload, narrowing_upload)
