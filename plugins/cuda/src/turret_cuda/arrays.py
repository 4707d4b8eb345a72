"""Which dtypes there are, by name and by the ending of a kernel's name, and how arrays lie in memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import ml_dtypes
import numpy as np

from turret.spi import DType, DTypeError, Shape

from .library import X

Native = np.dtype[Any]

NATIVE: dict[DType, Native] = {
    "float32": np.dtype(np.float32),
    "int32": np.dtype(np.int32),
    "bool": np.dtype(np.bool_),
    "uint8": np.dtype(np.uint8),
    "float16": np.dtype(np.float16),
    "bfloat16": np.dtype(ml_dtypes.bfloat16),
    "float64": np.dtype(np.float64),
    "int64": np.dtype(np.int64),
}
NAMES: dict[Native, DType] = {native: name for name, native in NATIVE.items()}
SUFFIXES: dict[Native, str] = {
    NATIVE["float32"]: "f32",
    NATIVE["int32"]: "i32",
    NATIVE["bool"]: "b8",
    NATIVE["uint8"]: "u8",
    NATIVE["float16"]: "f16",
    NATIVE["bfloat16"]: "bf16",
    NATIVE["float64"]: "f64",
    NATIVE["int64"]: "i64",
}
FLOAT32, FLOAT64, INT32, BOOL = NATIVE["float32"], NATIVE["float64"], NATIVE["int32"], NATIVE["bool"]
BFLOAT16 = NATIVE["bfloat16"]

MOST_AXES = 32
GEOMETRY = np.dtype([("rank", np.int64), ("sizes", np.int64, MOST_AXES), ("steps", np.int64, (4, MOST_AXES))])


def native(dtype: str) -> Native:
    """The dtype of this name. Raises: DTypeError."""
    for name, found in NATIVE.items():
        if name == dtype:
            return found
    raise DTypeError(f"cuda has no {dtype}; wanted one of {', '.join(NATIVE)}; cast on the host first")


def suffix(x: X) -> str:
    """How the kernels for x's dtype end."""
    return SUFFIXES[x.dtype]


def statistics(x: X) -> Native:
    """The dtype of sums and statistics over x: float64 stays, everything else has float32."""
    return FLOAT64 if x.dtype == FLOAT64 else FLOAT32


def geometry(shape: Shape, *arrays: X | None) -> Host:
    """How `shape` is walked through in each array, which broadcasts to it, as kernels take it; None lies nowhere.

    Axes of size 1 are left out, and neighbours that are one axis in every array are joined.
    """
    steps = [_steps(shape, x) for x in arrays]
    axes: list[tuple[int, list[int]]] = []
    for axis, size in enumerate(shape):
        if size == 1:
            continue
        here = [s[axis] for s in steps]
        if axes and all(outer == inner * size for outer, inner in zip(axes[-1][1], here, strict=True)):
            axes[-1] = axes[-1][0] * size, here
        else:
            axes.append((size, here))
    made, rank = np.zeros((), GEOMETRY), len(axes)
    made["rank"] = rank
    if rank:
        made["sizes"][:rank], made["steps"][: len(arrays), :rank] = [size for size, _ in axes], _turned(axes)
    return by_value(made)


def by_value(table: Host) -> Host:
    """The same memory as mere bytes, which CuPy hands to a kernel in a quarter of the time it takes over fields."""
    return table.view(np.dtype((np.void, table.dtype.itemsize)))


def _turned(axes: Sequence[tuple[int, list[int]]]) -> list[tuple[int, ...]]:
    """The steps of each array, from those of each axis."""
    return list(zip(*(here for _, here in axes), strict=True))


def _steps(shape: Shape, x: X | None) -> Sequence[int]:
    """Elements from one index to the next, for each axis of `shape`; 0 where x is repeated."""
    if x is None:
        return (0,) * len(shape)
    width = x.dtype.itemsize
    own = [0 if size == 1 else step // width for size, step in zip(x.shape, x.strides, strict=True)]
    return [0] * (len(shape) - len(own)) + own


Host = np.ndarray[Any, Any]
