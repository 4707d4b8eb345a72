"""Cross entropy."""

from __future__ import annotations

import math

from turret.spi import DType, DTypeError, ShapeError

from ..graph import Native, is_recording
from ..value import Tensor, record, require_float, require_indices, same_backend

IGNORE = -1
"""The default target that counts for nothing."""


def cross_entropy(logits: Tensor, targets: Tensor, weights: Tensor | None = None, *, ignore: int = IGNORE) -> Tensor:
    """Mean negative log-likelihood in nats, weighted per target; 0 when every target is ignored.

    logits: (..., V), targets: int32 (...) with classes or `ignore`, weights: float32 (...) >= 0; returns float32 (),
    float64 for float64 logits.
    """
    inputs = (logits, targets) if weights is None else (logits, targets, weights)
    backend = same_backend("cross_entropy", *inputs)
    require_float("cross_entropy", logits)
    require_indices("cross_entropy", targets)
    if not logits.shape or logits.shape[-1] == 0 or logits.shape[:-1] != targets.shape:
        raise ShapeError(
            f"cross_entropy got logits {logits.shape} and targets {targets.shape}; wanted (..., V) and (...)"
        )
    if weights is not None and weights.shape != targets.shape:
        raise ShapeError(f"cross_entropy got weights {weights.shape} and targets {targets.shape}; wanted equal shapes")
    if weights is not None and weights.dtype != "float32":
        raise DTypeError(f"cross_entropy got weights of dtype {weights.dtype}; wanted float32")
    tools, shape, dtype = backend.tools, logits.shape, logits.dtype
    kept: DType = "float64" if dtype == "float64" else "float32"
    count = math.prod(shape[:-1])
    flat = tools.layout.reshape(logits.value, (count, shape[-1]))
    rows = tools.layout.reshape(targets.value, (count,))
    shares = None if weights is None else tools.layout.reshape(weights.value, (count,))
    if not (logits.requires_grad and is_recording()):
        loss = tools.loss.cross_entropy(flat, rows, shares, ignore=ignore)
        return Tensor(loss, backend, kept)
    loss, gradient = tools.loss.cross_entropy_grad(flat, rows, shares, ignore=ignore)

    def vjp(dy: Native, needs: tuple[bool, ...]) -> tuple[Native | None, ...]:
        scale = dy if dtype == kept else tools.storage.cast(dy, dtype)
        return (tools.layout.reshape(tools.elementwise.multiply(gradient, scale), shape),)

    return record("cross_entropy", loss, Tensor(loss, backend, kept), (logits,), vjp)
