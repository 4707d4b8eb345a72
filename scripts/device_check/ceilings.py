"""What the device does at its best: large products by cuBLAS and a large copy, timed as everything else is."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from .schema import Ceilings

if TYPE_CHECKING:
    from turret.registry import OpenBackend
    from turret.spi import DType

Call = Callable[[], Any]
SIDE = {False: 8192, True: 64}
BYTES = {False: 1 << 30, True: 1 << 16}
SHARE = 16
"""The part of the device's memory that the copied array takes at most."""


def ceilings(opened: OpenBackend, timed: Callable[[Call], float], *, rehearsal: bool) -> Ceilings:
    """GFLOP/s and GB/s. timed: seconds of one call."""
    side, dtypes = SIDE[rehearsal], opened.tools.storage.device().dtypes
    gflops = {
        dtype: 2 * side**3 / timed(_product(opened, dtype, side)) / 1e9
        for dtype in ("float32", "bfloat16")
        if dtype in dtypes
    }
    memory = opened.tools.storage.memory()
    count = BYTES[rehearsal] if memory is None else min(BYTES[rehearsal], memory.total_bytes // SHARE)
    return Ceilings(
        float32_gflops=gflops["float32"],
        bfloat16_gflops=gflops.get("bfloat16"),
        copy_gbytes=2 * count / timed(_copy(opened, count)) / 1e9,
    )


def _product(opened: OpenBackend, dtype: DType, side: int) -> Call:
    """One square product. On a GPU straight into an array that is there, without the slot's allocation."""
    a, b = (_random(opened, dtype, side) for _ in range(2))
    if opened.name != "cuda":
        return lambda: opened.tools.matmul.matmul(a, b)
    from turret_cuda.cublas import Operand
    from turret_cuda.place import place_of

    place = place_of(opened.device)
    c = place.empty((side, side), a.dtype)
    operands = [Operand(x.data.ptr, side) for x in (a, b, c)]

    def product() -> Any:
        place.multiply(lambda blas: blas.strided(a.dtype, (1, side, side, side), *operands), a, b, c)
        return c

    return product


def _copy(opened: OpenBackend, count: int) -> Call:
    """A copy of `count` bytes. On a GPU by the driver, not by a kernel of ours."""
    x = opened.tools.storage.full((count // 4,), 1.0, dtype="float32")
    if opened.name != "cuda":
        return lambda: opened.tools.storage.copy(x)
    from turret_cuda.place import place_of

    place = place_of(opened.device)
    y = place.empty(x.shape, x.dtype)

    def copy() -> Any:
        place.run(lambda stream: y.data.copy_from_device_async(x.data, count // 4 * 4, stream))
        return y

    return copy


def _random(opened: OpenBackend, dtype: DType, side: int) -> Any:
    """Values as training has them: a product of zeros draws less power, and clocks rise."""
    import numpy as np

    values = np.resize(np.random.default_rng(3).standard_normal(1 << 18).astype(np.float32), (side, side))
    return opened.tools.storage.from_host(values, dtype=dtype)
