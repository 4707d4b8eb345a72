"""LayerNorm and RMSNorm over the last axis."""

from __future__ import annotations

from turret.registry import OpenBackend
from turret.spi import ConfigError, ShapeError

from ..graph import Native
from ..value import Tensor, record, same_floats


def _check(name: str, x: Tensor, eps: float, *vectors: Tensor) -> OpenBackend:
    backend = same_floats(name, x, *vectors)
    last = x.shape[-1:]
    if not last or last[0] == 0:
        raise ShapeError(f"{name} of shape {x.shape}; wanted a last axis of at least one element")
    for v in vectors:
        if v.shape != last:
            raise ShapeError(f"{name} of x {x.shape} got a weight or bias of shape {v.shape}; wanted ({x.shape[-1]},)")
    if not eps > 0:
        raise ConfigError(f"{name} got eps {eps}; wanted a positive number")
    return backend


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor, *, eps: float = 1e-5) -> Tensor:
    """(x - mean) / sqrt(var + eps) * weight + bias. x: (..., D), weight and bias: (D,)."""
    slot = _check("layer_norm", x, eps, weight, bias).tools.normalization
    xv, wv = x.value, weight.value
    out, mean, rstd = slot.layer_norm(xv, wv, bias.value, eps=eps)

    def vjp(dy: Native, needs: tuple[bool, ...]) -> tuple[Native | None, ...]:
        return slot.layer_norm_vjp(dy, xv, wv, mean, rstd)

    return record("layer_norm", out, x, (x, weight, bias), vjp)


def rms_norm(x: Tensor, weight: Tensor, *, eps: float = 1e-5) -> Tensor:
    """Returns x / sqrt(mean(x^2) + eps) * weight. x: (..., D), weight: (D,)."""
    slot = _check("rms_norm", x, eps, weight).tools.normalization
    xv, wv = x.value, weight.value
    out, rstd = slot.rms_norm(xv, wv, eps=eps)

    def vjp(dy: Native, needs: tuple[bool, ...]) -> tuple[Native | None, ...]:
        return slot.rms_norm_vjp(dy, xv, wv, rstd)

    return record("rms_norm", out, x, (x, weight), vjp)
