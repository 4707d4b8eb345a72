"""A layer and its adapter as one weight, and what packing that weight loses."""

from __future__ import annotations

import numpy as np

from turret.quant import PackedWeight
from turret.spi import ConfigError, Host, NonFiniteError, host_dtype
from turret.tensor import Tensor

from .adapter import Adaptable, LowRankAdapter
from .linear import Linear
from .packed import PackedLinear, copied


def merged(name: str, layer: Adaptable) -> tuple[Linear, Host]:
    """The Linear that takes the place of `layer` (a Linear itself) and the weight that it is to get, W + D.

    The sum is taken in float64 and rounded once. Raises: NonFiniteError naming a weight that is not finite.
    """
    plain = _plain(name, layer)
    dtype = host_dtype(plain.weight.dtype)
    with np.errstate(all="ignore"):
        made = (plain.weight.numpy().astype(np.float64) + _adapter(name, layer).delta()).astype(dtype)
    if not np.isfinite(made).all():
        raise NonFiniteError(f"{name}.weight with its adapter has NaN or infinity in {dtype}; detach() instead")
    return plain, made


def merged_and_packed(name: str, layer: PackedLinear) -> tuple[PackedLinear, float]:
    """W + D packed as W was, and ||pack(W + D) - (W + D)|| / ||D|| in the Frobenius norm."""
    _, whole = merged(name, layer)
    old, wanted = layer.weight, whole.astype(np.float32)
    value = Tensor(old.backend.tools.storage.from_host(wanted), old.backend, "float32")
    weight = PackedWeight.pack(value, block=old.block, scales=old.scale_code)
    error = float(np.linalg.norm(weight.unpack().numpy().astype(np.float64) - wanted))
    size = float(np.linalg.norm(_adapter(name, layer).delta()))
    lost = error / size if size else (np.inf if error else 0.0)
    return PackedLinear(weight, copied(layer.bias)), float(lost)


def _plain(name: str, layer: Adaptable) -> Linear:
    if isinstance(layer, PackedLinear):
        return layer.unpacked()
    if isinstance(layer, Linear):
        return layer
    raise ConfigError(f"{name} is {type(layer).__name__}; wanted a Linear or PackedLinear, whose weights can be merged")


def _adapter(name: str, layer: Adaptable) -> LowRankAdapter:
    if layer.adapter is None:
        raise ConfigError(f"{name} has no adapter to merge")
    return layer.adapter
