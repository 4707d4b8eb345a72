"""Softmax and log-softmax over the last axis."""

from __future__ import annotations

from turret.spi import ShapeError

from ..value import Tensor, record, require_float, same_backend


def _check(name: str, x: Tensor) -> None:
    require_float(name, x)
    if not x.shape or x.shape[-1] == 0:
        raise ShapeError(f"{name} of shape {x.shape}; wanted a last axis of at least one element")


def softmax(x: Tensor) -> Tensor:
    """exp(x) normalized to sum 1 over the last axis."""
    slot = same_backend("softmax", x).tools.softmax
    _check("softmax", x)
    y = slot.softmax(x.value)
    return record("softmax", y, x, (x,), lambda dy, _: (slot.softmax_vjp(dy, y),))


def log_softmax(x: Tensor) -> Tensor:
    """The logarithm of `softmax`, without overflow."""
    slot = same_backend("log_softmax", x).tools.softmax
    _check("log_softmax", x)
    y = slot.log_softmax(x.value)
    return record("log_softmax", y, x, (x,), lambda dy, _: (slot.log_softmax_vjp(dy, y),))
