"""Cases of casting, on the device and on arrival, and of dtypes that the device may lack."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from turret.spi import DTYPES, FLOATS, REQUIRED_DTYPES, DType, DTypeError, Host, Shape, host_dtype

from ..bench import Bench
from ..case import Case, call_case
from ..given import Call, Draw, View, rounded
from .naming import SHORT, variant

FRACTIONS = (0.0, -0.0, 0.5, -0.5, 1.0, 1.75, -1.75, 2.5, -2.5, 99.9, -99.9, 0.1, 200.75)
BEYOND = (float("nan"), float("inf"), float("-inf"), 1e5, -1e30)
WHOLE = (0, 1, -1, 7, 127, 128, 255, -128, 2047, -2049, 16777217, 2**31 - 1, -(2**31), 2**40 + 1)
LIMITS: dict[DType, tuple[int, int]] = {
    "int32": (-(2**31), 2**31 - 1),
    "int64": (-(2**63), 2**63 - 1),
    "uint8": (0, 255),
}
WIDE: dict[DType, tuple[float, ...]] = {
    "float64": (1 + 2.0**-40, 1e300, -1e-300),
    "int64": (2**40 + 1, -(2**62) + 1),
    "float16": (1 + 2.0**-10, 65504.0, -(2.0**-14)),
    "bfloat16": (1 + 2.0**-7, 2.0**127, -(2.0**-120)),
}
"""What only this dtype, or a wider one, holds."""
FOREIGN = ("complex64", "uint16", "int8", "uint32", "str", "datetime64[s]")
FORMS: tuple[tuple[DType, DType, Shape, View], ...] = (
    ("float32", "int32", (), "whole"),
    ("float32", "int32", (0, 4), "whole"),
    ("float32", "int32", (6, 5), "strided"),
    ("int32", "float32", (6, 5), "transposed"),
    ("float32", "bool", (6, 5), "offset"),
    ("uint8", "int32", (20_000,), "whole"),
    ("float32", "float32", (6, 5), "strided"),
)


def cases() -> Iterator[Case]:
    """Each source to every dtype of the device; shapes and views; dtypes that are there or refused."""
    for source in DTYPES:
        yield _from(source)
    for form in FORMS:
        yield _cast(*form)
    for dtype in WIDE:
        yield _kept_or_refused(dtype)
    for name in FOREIGN:
        yield _foreign(name)


def _from(source: DType) -> Case:
    def body(bench: Bench) -> None:
        bench.needs(source)
        for target in sorted(bench.device.dtypes):
            host = _castable(source, target)
            want = _cast_truth(host, target)
            x = bench.put(bench.draw.of(host, source))
            bench.context = f"storage.cast({source} to {target})"
            bench.exact("result", bench.tools.storage.cast(x, target), want, target)
            bench.context = f"storage.from_host({host.dtype} with dtype={target!r})"
            bench.exact("result", bench.tools.storage.from_host(host, dtype=target), want, target)

    return Case(id=f"storage/cast/{SHORT[source]}-to-all", body=body, kind="forward")


def _castable(source: DType, target: DType) -> Host:
    """Values of the source whose image in the target is specified."""
    if source == "bool":
        return np.array([False, True, True, False])
    if source not in FLOATS:
        ranges = LIMITS[source], LIMITS.get(target, LIMITS["int64"])
        fits = [value for value in WHOLE if all(low <= value <= high for low, high in ranges)]
        return np.array([value for value in fits if abs(value) < 60_000 or target != "float16"], source)
    values = np.array(FRACTIONS if target in LIMITS else (*FRACTIONS, *BEYOND))
    if target == "uint8":
        values = values[values > -1]
    return rounded(values, source)


def _cast_truth(host: Host, target: DType) -> Host:
    """Rounded to nearest, cut towards zero, or whether it differs from zero."""
    if target in FLOATS:
        return rounded(host.astype(np.float64), target)
    if target == "bool":
        return np.asarray(host != 0)
    return (np.trunc(host) if host.dtype.kind == "f" else host).astype(target)


def _cast(source: DType, target: DType, shape: Shape, view: View) -> Case:
    def call(draw: Draw) -> Call:
        x = draw.uniform(*shape, low=-200 if source != "uint8" else 0, high=200, dtype=source, view=view)
        return Call("storage", "cast", (x, target))

    def truth(x: Host, dtype: DType, /) -> Host:
        return _cast_truth(np.asarray(getattr(x, "value", x)), dtype)

    name = f"storage/cast/{variant(shape, source, view)}-to-{SHORT[target]}"
    return call_case(name, call, truth, returns=(target,), exact=True, may_alias=source == target)


def _kept_or_refused(dtype: DType) -> Case:
    """A dtype is there with all its values, or DTypeError says that it is not; never a narrower one in its place."""

    def body(bench: Bench) -> None:
        storage = bench.tools.storage
        host = np.array(WIDE[dtype], host_dtype(dtype))
        if dtype in bench.device.dtypes:
            bench.exact("from_host", storage.from_host(host, dtype=dtype), host, dtype)
            bench.exact("full", storage.full((3,), WIDE[dtype][0], dtype=dtype), np.repeat(host[:1], 3), dtype)
            return
        plain = bench.put(bench.draw.of(np.ones((3,)), "float32"))
        bench.refuses(DTypeError, lambda: storage.from_host(np.ones((3,), np.float32), dtype=dtype))
        bench.refuses(DTypeError, lambda: storage.full((3,), 1.0, dtype=dtype))
        bench.refuses(DTypeError, lambda: storage.cast(plain, dtype))
        if dtype != "bfloat16":
            bench.refuses(DTypeError, lambda: storage.from_host(host))

    assert dtype not in REQUIRED_DTYPES
    return Case(id=f"storage/kept-or-refused/{SHORT[dtype]}", body=body, kind="forward")


def _foreign(name: str) -> Case:
    def body(bench: Bench) -> None:
        host = np.zeros((3,), name)
        text = bench.refuses(DTypeError, lambda: bench.tools.storage.from_host(host))
        bench.require(text, f"DTypeError for {name} has no text")

    return Case(id=f"storage/foreign/{name.split('[')[0]}", body=body, kind="forward")
