"""Cases of the storage slot: moving, making, casting and copying values, and what the device says of itself."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from turret.spi import DTYPES, DType, DTypeError, Host, host_dtype

from ..bench import Bench
from ..case import Case, call_case
from ..given import Call, Draw, View, rounded
from . import storage_casts, storage_device
from .giving_away import overwrite
from .host_layouts import LAYOUTS, laid_out
from .naming import SHORT, variant
from .views import VIEWS

FULL: dict[DType, tuple[float, ...]] = {
    "float32": (0.0, -0.0, 1.5, -3e38, float("inf"), float("nan")),
    "float16": (0.25, -65504.0, float("-inf")),
    "bfloat16": (0.25, -1.5, float("inf")),
    "float64": (1 + 2.0**-40, 1e300),
    "int32": (0, 7, -1, 16777217, 2**31 - 1, -(2**31)),
    "int64": (7, -1, 2**40 + 1),
    "uint8": (0, 1, 255),
    "bool": (0, 1),
}


def cases() -> Iterator[Case]:
    """Arrival, departure, creation, casts, copies, dtypes, waiting, memory and the device."""
    for dtype in DTYPES:
        yield _arrives("whole", dtype)
        yield _leaves("whole", dtype)
        yield _full(dtype)
        yield _copy((5, 7), dtype, "whole")
        yield _dtype_of(dtype)
    for layout in LAYOUTS:
        if layout != "whole":
            yield _arrives(layout, "float32")
    for layout in ("strided", "unaligned", "reversed"):
        yield _arrives(layout, "uint8")
    yield Case(id="storage/from-host/byte-swapped-f32", body=_byte_swapped, kind="forward")
    yield Case(id="storage/from-host/twice-f32", body=_twice, kind="forward")
    for view in VIEWS:
        yield _leaves(view, "float32")
        yield _copy((6, 5), "float32", view)
    for shape in ((), (0, 3), (20_000,)):
        yield _copy(shape, "float32", "whole")
    yield Case(id="storage/to-host/kept-after-donation-f32", body=_kept_after_donation, kind="forward")
    yield Case(id="storage/full/fresh-f32", body=_full_is_fresh, kind="forward")
    yield Case(id="storage/full/several-before-a-read-f32", body=_several_fulls, kind="forward")
    for stop in (0, 1, 63, 1025):
        yield _arange(stop)
    yield from storage_casts.cases()
    yield from storage_device.cases()


def sample(draw: Draw, dtype: DType, *shape: int) -> Host:
    """Values of every sign that `dtype` holds exactly, in an array of its own."""
    if dtype == "bool":
        return draw.booleans(*shape).host.copy()
    if dtype in ("int32", "int64", "uint8"):
        low, high = (0, 256) if dtype == "uint8" else (-(2**31), 2**31)
        return draw.integers(*shape, low=low, high=high, dtype=dtype).host.copy()
    return rounded(draw.rng.standard_normal(shape) * 3, dtype).copy()


def _arrives(layout: str, dtype: DType) -> Case:
    """The values arrive, and what is written to the host array afterwards does not."""

    def body(bench: Bench) -> None:
        bench.needs(dtype)
        host, owner = laid_out(layout, sample(bench.draw, dtype, *LAYOUTS[layout]))
        want = np.array(host, order="C")
        x = bench.tools.storage.from_host(host, dtype=dtype)
        own = None if dtype == "bfloat16" else bench.tools.storage.from_host(host)
        owner[...] = owner == 0
        bench.exact("the array, after its host array was overwritten", x, want, dtype)
        if own is not None:
            bench.exact("the same without `dtype`", own, want, dtype)

    return Case(id=f"storage/from-host/{layout}-{SHORT[dtype]}", body=body, kind="forward")


def _byte_swapped(bench: Bench) -> None:
    """Foreign byte order is understood or refused, never taken for the machine's own."""
    want = np.arange(1.0, 7.0, dtype=np.float32)
    try:
        x = bench.tools.storage.from_host(want.astype(want.dtype.newbyteorder()))
    except (DTypeError, TypeError, ValueError) as error:
        bench.require(str(error), "an array of foreign byte order was refused without a word")
        return
    bench.exact("an array of foreign byte order", x, want, "float32")


def _twice(bench: Bench) -> None:
    host = sample(bench.draw, "float32", 40, 9)
    first, second = (bench.tools.storage.from_host(host) for _ in range(2))
    kept = host.copy()
    overwrite(bench, first)
    bench.exact("the second array, after the first was given away", second, kept, "float32")
    bench.same("the host array, after the first was given away", host, kept)


def _leaves(view: View, dtype: DType) -> Case:
    """`to_host` gives an array of the caller's own: writing it reaches nobody."""

    def body(bench: Bench) -> None:
        storage = bench.tools.storage
        given = bench.draw.of(sample(bench.draw, dtype, 6, 5), dtype, view)
        x = bench.put(given)
        first = storage.to_host(x)
        bench.require(type(first) is np.ndarray, f"to_host gave {type(first)}, wanted numpy.ndarray")
        bench.require(first.dtype == host_dtype(dtype), f"to_host gave {first.dtype} for {dtype}")
        bench.require(first.flags.c_contiguous, f"to_host gave strides {first.strides}, wanted C order")
        bench.require(first.flags.writeable, "to_host gave a read-only array")
        bench.same("to_host", first, given.host)
        first[...] = first == 0
        second = storage.to_host(x)
        bench.require(not np.shares_memory(first, second), "two calls of to_host gave one memory")
        bench.same("to_host, after an earlier result was overwritten", second, given.host)

    return Case(id=f"storage/to-host/{variant((6, 5), dtype, view)}", body=body, kind="forward")


def _kept_after_donation(bench: Bench) -> None:
    host = sample(bench.draw, "float32", 40, 9)
    x = bench.tools.storage.from_host(host)
    left = bench.tools.storage.to_host(x)
    bench.tools.storage.synchronize(overwrite(bench, x))
    bench.same("what to_host gave, after the array was given away", left, host)


def _full(dtype: DType) -> Case:
    def body(bench: Bench) -> None:
        bench.needs(dtype)
        for value in FULL[dtype]:
            for shape in ((), (3, 4), (0, 2), (1025,)):
                bench.context = f"storage.full({shape}, {value!r}, dtype={dtype!r})"
                want = np.full(shape, value, host_dtype(dtype))
                bench.exact("result", bench.tools.storage.full(shape, value, dtype=dtype), want, dtype)

    return Case(id=f"storage/full/{SHORT[dtype]}", body=body, kind="forward")


def _full_is_fresh(bench: Bench) -> None:
    """Two moments of zeros are donated together: they may not be one buffer."""
    full = bench.tools.storage.full
    first, second = full((9, 5), 0.0, dtype="float32"), full((9, 5), 0.0, dtype="float32")
    overwrite(bench, first)
    zeros = np.zeros((9, 5), np.float32)
    bench.exact("zeros, after earlier zeros were given away", second, zeros, "float32")
    bench.exact("zeros made after that", full((9, 5), 0.0, dtype="float32"), zeros, "float32")


def _copy(shape: tuple[int, ...], dtype: DType, view: View) -> Case:
    def call(draw: Draw) -> Call:
        return Call("storage", "copy", (draw.of(sample(draw, dtype, *shape), dtype, view),))

    return call_case(f"storage/copy/{variant(shape, dtype, view)}", call, _itself, returns=(dtype,), exact=True)


def _itself(x: Any, /) -> Any:
    return x


def _dtype_of(dtype: DType) -> Case:
    def body(bench: Bench) -> None:
        for shape in ((), (3,), (0, 2)):
            x = bench.put(bench.draw.of(sample(bench.draw, dtype, *shape), dtype))
            got = bench.tools.storage.dtype_of(x)
            bench.require(got == dtype and type(got) is str, f"dtype_of gave {got!r} for {dtype} of shape {shape}")

    return Case(id=f"storage/dtype-of/{SHORT[dtype]}", body=body, kind="forward")


def _arange(stop: int) -> Case:
    def body(bench: Bench) -> None:
        x = bench.tools.storage.arange(stop)
        bench.exact(f"arange({stop})", x, np.arange(stop, dtype=np.int32), "int32")

    return Case(id=f"storage/arange/{stop}", body=body, kind="forward")


def _several_fulls(bench: Bench) -> None:
    """Nothing is read between the calls: a backend that fills later must not have forgotten with what."""
    values = (1.0, -2.5, 0.0, 7.0)
    made = [bench.tools.storage.full((5, n + 1), value, dtype="float32") for n, value in enumerate(values)]
    for array, value in zip(made, values, strict=True):
        bench.exact(f"filled with {value}", array, np.full(array.shape, value, np.float32), "float32")
