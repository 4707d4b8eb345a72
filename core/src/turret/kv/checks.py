"""What may be put into a key-value cache."""

from __future__ import annotations

from turret.registry import OpenBackend
from turret.spi import BackendMismatch, ConfigError, DType, DTypeError, GraphError, ShapeError
from turret.tensor import Tensor
from turret.tensor.graph import is_recording
from turret.tensor.value import same_floats


def check_sizes(**sizes: int) -> None:
    """Raises: ConfigError for a size below 1."""
    for what, size in sizes.items():
        if size < 1:
            raise ConfigError(f"a key-value cache got {what} {size}; wanted at least 1")


def check_rewind(length: int, held: int) -> None:
    """Raises: ShapeError unless 0 <= length <= held."""
    if not 0 <= length <= held:
        raise ShapeError(f"a key-value cache of {held} tokens was to go back to {length}; wanted 0 to {held}")


def check_entry(k: Tensor, v: Tensor, backend: OpenBackend, dtype: DType, sizes: tuple[int, int, int]) -> None:
    """Refuses keys and values that do not fit a cache of sizes (batch, key-value heads, head size).

    Raises: GraphError while recording, BackendMismatch, DTypeError, ShapeError.
    """
    if is_recording():
        raise GraphError("a key-value cache has no gradient; run the model under no_grad()")
    if same_floats("a key-value cache", k, v) is not backend:
        raise BackendMismatch(f"a cache on {backend.spec} got keys on {k.backend.spec}; make one for the model")
    if k.dtype != dtype:
        raise DTypeError(f"a cache of {dtype} got keys of {k.dtype}; make one with dtype={k.dtype!r}")
    batch, kv_heads, head_size = sizes
    if k.ndim != 4 or k.shape != v.shape or (k.shape[0], *k.shape[2:]) != sizes:
        raise ShapeError(
            f"a cache got keys {k.shape} and values {v.shape}; wanted ({batch}, T, {kv_heads}, {head_size})"
        )
