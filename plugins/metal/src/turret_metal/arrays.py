"""Which dtypes there are, by name, and what every slot does with an array: two changes of dtype, and folding."""

from __future__ import annotations

from collections.abc import Callable

import mlx.core as mx

from turret.spi import DType, DTypeError

from .stream import Stream, X

NATIVE: dict[DType, mx.Dtype] = {
    "float32": mx.float32,
    "int32": mx.int32,
    "bool": mx.bool_,
    "uint8": mx.uint8,
    "float16": mx.float16,
    "bfloat16": mx.bfloat16,
    "int64": mx.int64,
}
NAMES: dict[mx.Dtype, DType] = {native: name for name, native in NATIVE.items()}
HALF = (mx.float16, mx.bfloat16)


def native(dtype: str) -> mx.Dtype:
    """MLX's dtype of this name. Raises: DTypeError."""
    for name, found in NATIVE.items():
        if name == dtype:
            return found
    raise DTypeError(f"metal has no {dtype}; wanted one of {', '.join(NATIVE)}; cast on the host first")


def wide(do: Stream, x: X) -> X:
    """Halves in float32, anything else as it is: the dtype to compute in."""
    return do(mx.astype, x, mx.float32) if x.dtype in HALF else x


def like(do: Stream, x: X, model: X) -> X:
    """`x` in the dtype of `model`."""
    return x if x.dtype == model.dtype else do(mx.astype, x, model.dtype)


def fold(
    do: Stream,
    operation: Callable[..., X],
    x: X,
    /,
    *,
    axis: int | tuple[int, ...] | None = None,
    keepdims: bool = False,
) -> X:
    """`operation`, a reduction, of x over `axis`, or over all axes; 0 where x is empty.

    MLX's CPU device reads foreign memory, and may take minutes, where it reduces an empty array.
    """
    if x.size:
        return do(operation, x, axis=axis, keepdims=keepdims)
    folded = {a % x.ndim for a in (range(x.ndim) if axis is None else (axis,) if isinstance(axis, int) else axis)}
    sizes = [1 if a in folded else size for a, size in enumerate(x.shape) if keepdims or a not in folded]
    return do(mx.zeros, sizes, x.dtype)
