"""Wrong storage: what was uploaded is not what is kept."""

from __future__ import annotations

from typing import Any

import numpy as np

from turret.spi import DType, Host, Shape, host_dtype

from .fault import Broken, Remembered, Tools, fault, overwrite

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


@fault(
    name="fills-share-a-staging-scalar",
    slot="storage",
    needs="writing",
    url="https://github.com/pytorch/pytorch/issues/122016",
    report=(
        "Two scalar fills queued after each other both wrote the second value, because the staging scalar was "
        "reused before the device had read the first."
    ),
    summary=(
        "storage.full does not write at once: all arrays made by full since the last synchronize or to_host take "
        "the value of the latest full call with the same dtype."
    ),
)
def shared_staging(good: Any, tools: Tools) -> Broken:
    queued: dict[DType, list[Any]] = {}

    def full(shape: Shape, value: float, /, *, dtype: DType) -> Any:
        for x in queued.get(dtype, []):
            overwrite(tools, x, np.full(x.shape, value))
        made = good.full(shape, value, dtype=dtype)
        queued.setdefault(dtype, []).append(made)
        return made

    def to_host(x: Any, /) -> Host:
        queued.clear()
        host: Host = good.to_host(x)
        return host

    def synchronize(*arrays: Any) -> None:
        queued.clear()
        good.synchronize(*arrays)

    return Broken(good, full=full, to_host=to_host, synchronize=synchronize)


@fault(
    name="float64-passes-through-float32",
    needs="float64",
    slot="storage",
    url="https://github.com/ml-explore/mlx/issues/2856",
    report=(
        "An array created as float64 held values that had first been rounded to float32, while its dtype said float64."
    ),
    summary=(
        "storage.from_host with dtype float64 on a device that declares it rounds values to float32 first; "
        "dtype_of answers float64."
    ),
)
def narrowed_values(good: Any, tools: Tools) -> Broken:
    def from_host(host: Host, /, *, dtype: DType | None = None) -> Any:
        if (dtype or host.dtype.name) != "float64":
            return good.from_host(host, dtype=dtype)
        with np.errstate(all="ignore"):
            return good.from_host(host.astype(np.float32).astype(np.float64), dtype=dtype)

    return Broken(good, from_host=from_host)


@fault(
    name="upload-reads-source-late",
    slot="storage",
    url="https://github.com/pytorch/pytorch/issues/189690",
    report=(
        "A non-blocking upload read the host memory after the caller had released it, giving values of other "
        "arrays unless a read followed at once."
    ),
    summary=(
        "storage.from_host takes the values at the first use (any slot, to_host or synchronize) instead of at the "
        "call; host writes in between get in, an immediate read hides it."
    ),
)
def late_upload(good: Any, tools: Tools) -> Broken:
    pending = Remembered()
    read = Remembered()

    def from_host(host: Host, /, *, dtype: DType | None = None) -> Any:
        x = good.from_host(host, dtype=dtype)
        pending.keep(x, (host, host.copy(), dtype))
        return x

    def used(x: Any) -> Any:
        """The array with the values its source has at the first use."""
        if (found := pending.about(x)) is not None:
            host, before, dtype = found
            pending.keep(x, None)
            if host.tobytes() != before.tobytes():
                read.keep(x, good.from_host(host, dtype=dtype))
        late = read.about(x)
        return x if late is None else late

    def to_host(x: Any, /) -> Host:
        host: Host = good.to_host(used(x))
        return host

    def cast(x: Any, dtype: DType, /) -> Any:
        return good.cast(used(x), dtype)

    def synchronize(*arrays: Any) -> None:
        good.synchronize(*(used(x) for x in arrays))

    return Broken(
        good,
        from_host=from_host,
        to_host=to_host,
        cast=cast,
        copy=lambda x: good.copy(used(x)),
        synchronize=synchronize,
    )


FAULTS = (
    sharing_upload,
    narrowing_upload,
    shared_staging,
    narrowed_values,
    late_upload,
)
