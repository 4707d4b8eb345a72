"""Softmax and log-softmax over the last axis."""

from __future__ import annotations

from turret.registry import OpenBackend
from turret.spi import ShapeError

from ..value import Tensor, record, same_floats


def _check(name: str, x: Tensor) -> OpenBackend:
    backend = same_floats(name, x)
    if not x.shape or x.shape[-1] == 0:
        raise ShapeError(f"{name} of shape {x.shape}; wanted a last axis of at least one element")
    return backend


def softmax(x: Tensor) -> Tensor:
    """exp(x) normalized to sum 1 over the last axis."""
    slot = _check("softmax", x).tools.softmax
    y = slot.softmax(x.value)
    return record("softmax", y, x, (x,), lambda dy, _: (slot.softmax_vjp(dy, y),))


def log_softmax(x: Tensor) -> Tensor:
    """The logarithm of `softmax`, without overflow."""
    slot = _check("log_softmax", x).tools.softmax
    y = slot.log_softmax(x.value)
    return record("log_softmax", y, x, (x,), lambda dy, _: (slot.log_softmax_vjp(dy, y),))
