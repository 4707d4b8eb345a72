"""What every slot of this backend says about arrays inside its programs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt

from turret.spi import DType, DTypeError

from .library import jax, lax

X = jax.Array
Contraction = tuple[tuple[tuple[int, ...], tuple[int, ...]], tuple[tuple[int, ...], tuple[int, ...]]]

FLOAT32 = np.dtype(np.float32)
DTYPES: dict[DType, np.dtype[Any]] = {
    "float32": FLOAT32,
    "int32": np.dtype(np.int32),
    "bool": np.dtype(np.bool_),
    "uint8": np.dtype(np.uint8),
    "float16": np.dtype(np.float16),
    "bfloat16": np.dtype(ml_dtypes.bfloat16),
}
NAMES: dict[npt.DTypeLike, DType] = {native: name for name, native in DTYPES.items()}
HALF = frozenset((DTYPES["float16"], DTYPES["bfloat16"]))


def native(dtype: str) -> np.dtype[Any]:
    """JAX's dtype of this name. Raises: DTypeError, where JAX itself would narrow to 32 bits and say nothing."""
    for name, found in DTYPES.items():
        if name == dtype:
            return found
    raise DTypeError(f"tpu has no {dtype}; wanted one of {', '.join(DTYPES)}; cast on the host first")


def wide(x: X) -> X:
    """Halves in float32, float32 as it is: the dtype to compute in."""
    return lax.convert_element_type(x, FLOAT32) if x.dtype in HALF else x


def like(x: X, model: X) -> X:
    """`x` in the dtype of `model`."""
    return lax.convert_element_type(x, model.dtype)


def dot(a: X, b: X, contraction: Contraction) -> X:
    """A product with full float32 precision, which a TPU gives only where asked; halves sum in float32."""
    return lax.dot_general(a, b, contraction, precision=lax.Precision.HIGHEST, preferred_element_type=FLOAT32)


def rows(x: X) -> X:
    """(..., D) as (N, D)."""
    width = x.shape[-1]
    return lax.reshape(x, (int(np.prod(x.shape[:-1], dtype=np.int64)), width))


def spread(*xs: X) -> tuple[X, ...]:
    """All of them in the one shape that NumPy's broadcasting gives."""
    shape = lax.broadcast_shapes(*(x.shape for x in xs))
    start = len(shape)
    return tuple(
        x if x.shape == shape else lax.broadcast_in_dim(x, shape, tuple(range(start - x.ndim, start))) for x in xs
    )


def _operation(function: Callable[[X, X], X]) -> Callable[[X | float, X | float], X]:
    """A function of two arrays whose shapes broadcast, or of one and a number.

    An operator such as * would do the same as a program of JAX's own, of which JAX keeps one for every shape for ever.
    """

    def apply(a: X | float, b: X | float) -> X:
        if not isinstance(a, jax.Array):
            a = lax.full((), a, b.dtype)  # type: ignore[union-attr]  # two numbers never meet here
        if not isinstance(b, jax.Array):
            b = lax.full((), b, a.dtype)
        return function(*spread(a, b))

    return apply


add, sub, mul, div = map(_operation, (lax.add, lax.sub, lax.mul, lax.div))
greater, smaller = map(_operation, (lax.max, lax.min))
equal, less, less_equal = map(_operation, (lax.eq, lax.lt, lax.le))


def choose(condition: X, a: X | float, b: X) -> X:
    """`a` where the condition holds, else `b`, in the shape of `b`."""
    condition, a, b = spread(condition, a if isinstance(a, jax.Array) else lax.full((), a, b.dtype), b)
    return lax.select(condition, a, b)


def row_sum(x: X) -> X:
    """(..., D) to (..., 1)."""
    return lax.expand_dims(lax.reduce_sum(x, (x.ndim - 1,)), (x.ndim - 1,))


def row_mean(x: X) -> X:
    """(..., D) to (..., 1)."""
    return div(row_sum(x), float(x.shape[-1]))


def row_max(x: X) -> X:
    """(..., D) to (..., 1). A NaN in a row may be overlooked: XLA's CPU compiler drops it on long rows."""
    return lax.expand_dims(lax.reduce_max(x, (x.ndim - 1,)), (x.ndim - 1,))


def column_sum(x: X) -> X:
    """(..., D) added up to (D,)."""
    return lax.reduce_sum(x, tuple(range(x.ndim - 1)))
