"""Cases of what a device says of itself, and of waiting for it."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from turret.spi import DTYPES, FLOATS, REQUIRED_DTYPES, DType

from ..bench import Bench
from ..case import Case
from ..tolerances import FORMATS
from .naming import SHORT

TINY = 1e-40


def cases() -> Iterator[Case]:
    """The device's description, dtypes that compute, memory, subnormals, synchronize."""
    yield Case(id="storage/device/description", body=_description, kind="forward")
    for dtype in DTYPES:
        yield _computes(dtype)
    yield Case(id="storage/device/subnormals", body=_subnormals, kind="forward")
    yield Case(id="storage/memory/figures", body=_memory, kind="forward")
    yield Case(id="storage/synchronize/none-one-many", body=_synchronize, kind="forward")


def _description(bench: Bench) -> None:
    device = bench.tools.storage.device()
    bench.require(isinstance(device.name, str) and device.name, f"the device's name is {device.name!r}")
    bench.require(isinstance(device.kind, str) and device.kind, f"the device's kind is {device.kind!r}")
    bench.require(isinstance(device.dtypes, frozenset), f"dtypes is a {type(device.dtypes).__name__}, not a frozenset")
    missing, unknown = set(REQUIRED_DTYPES) - device.dtypes, device.dtypes - set(DTYPES)
    bench.require(not missing, f"dtypes every device has are missing: {sorted(missing)}")
    bench.require(not unknown, f"dtypes nobody knows are declared: {sorted(unknown)}")
    bench.require(type(device.flushes_subnormals) is bool, "flushes_subnormals is no bool")
    bench.require(bench.tools.storage.device() == device, "two calls describe two devices")


def _computes(dtype: DType) -> Case:
    """A declared dtype is more than a label on another one."""

    def body(bench: Bench) -> None:
        bench.needs(dtype)
        ops, put, draw = bench.tools.elementwise, bench.put, bench.draw
        if dtype == "bool":
            a, b = (put(draw.of([True, True, False], dtype)), put(draw.of([True, False, False], dtype)))
            bench.exact("logical_and", ops.logical_and(a, b), np.array([True, False, False]), dtype)
        elif dtype == "uint8":
            x = bench.tools.storage.cast(put(draw.of([0, 200, 255], dtype)), "int32")
            bench.exact("cast to int32", x, np.array([0, 200, 255], np.int32), "int32")
        elif dtype in FLOATS:
            step = 2 * FORMATS[dtype].unit
            one = put(draw.of([1.0, -1.0], dtype))
            more = ops.add(one, put(draw.of([step, -step], dtype)))
            bench.exact("1 + eps - 1", ops.subtract(more, one), draw.of([step, -step], dtype).host, dtype)
            product = bench.tools.matmul.matmul(put(draw.of([[1 + step, 2.0]], dtype)), put(draw.of([[1], [0]], dtype)))
            bench.exact("(1 + eps) 1 + 2 0", product, draw.of([[1 + step]], dtype).host, dtype)
        else:
            big = 2**40 if dtype == "int64" else 2**30
            total = ops.add(put(draw.of([big, -big], dtype)), put(draw.of([1, -1], dtype)))
            bench.exact("large sums", total, np.array([big + 1, -big - 1], dtype), dtype)

    return Case(id=f"storage/device/computes-{SHORT[dtype]}", body=body, kind="forward")


def _subnormals(bench: Bench) -> None:
    """A device that does not declare that it flushes must not."""
    ops, draw = bench.tools.elementwise, bench.draw
    small, smaller = bench.put(draw.of([1e-30] * 5)), bench.put(draw.of([1e-10] * 5))
    got = bench.get(ops.multiply(small, smaller)).astype(np.float64)
    kept = np.abs(got - TINY) <= 2 * FORMATS["float32"].spacing
    gone = got == 0
    bench.require(np.all(kept | gone), f"1e-30 * 1e-10 gave {got!r}, neither 1e-40 nor 0")
    if not bench.device.flushes_subnormals:
        bench.require(np.all(kept), "1e-30 * 1e-10 gave 0; a device that flushes must declare flushes_subnormals")


def _memory(bench: Bench) -> None:
    first = bench.tools.storage.memory()
    held = bench.tools.storage.full((1 << 16,), 1.0, dtype="float32")
    bench.tools.storage.synchronize(held)
    second = bench.tools.storage.memory()
    bench.require((first is None) == (second is None), "memory() tells once and not again")
    for memory in (first, second):
        if memory is None:
            continue
        figures = (memory.used_bytes, memory.peak_bytes, memory.total_bytes)
        bench.require(all(isinstance(each, int) for each in figures), f"memory figures {figures} are not whole bytes")
        bench.require(0 <= figures[0] <= figures[1], f"in use {figures[0]}, highest use {figures[1]}")
        bench.require(figures[0] <= figures[2], f"in use {figures[0]} of {figures[2]} bytes")
    if first is not None and second is not None:
        bench.require(second.peak_bytes >= first.peak_bytes, "the highest use went down")
        bench.require(second.used_bytes >= 4 * math.prod(held.shape), "an array in use is not counted")


def _synchronize(bench: Bench) -> None:
    storage, ops = bench.tools.storage, bench.tools.elementwise
    x = bench.put(bench.draw.normal(6, 5, view="transposed"))
    nothing = bench.put(bench.draw.normal(0, 3))
    scalar = bench.put(bench.draw.of(2.5))
    total = ops.add(x, scalar)
    for arrays in ((), (x,), (total, total), (x, nothing, scalar, total)):
        storage.synchronize(*arrays)
    bench.close("a sum that was waited for", total, bench.get(x).astype(np.float64) + 2.5)
