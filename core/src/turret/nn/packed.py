"""The affine map of a packed, frozen weight."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from turret.quant import PackedWeight
from turret.spi import ConfigError, Packed, ScaleCode, ShapeError
from turret.tensor import Parameter, Tensor, ops
from turret.tensor.pending import Pending

from .adapter import Adaptable
from .linear import Linear
from .precision import lowered

FIELDS = tuple(field.name for field in fields(Packed))


class PackedLinear(Adaptable):
    """x @ weight^T + bias, plus what an adapter adds, with an NF4 weight: stands in for a Linear that is not trained.

    The weight's arrays are buffers: moved and captured with the module, in no `state_dict`; `weight` has them, for
    `turret.quant.save_packed`. bias: (outputs,) or none, the only parameter.
    """

    def __init__(self, weight: PackedWeight, bias: Parameter | None = None) -> None:
        if not isinstance(weight, PackedWeight):
            raise ConfigError(
                f"PackedLinear got {type(weight).__name__} for a weight; wanted a PackedWeight, which "
                f"PackedWeight.pack makes"
            )
        if bias is not None and not isinstance(bias, Parameter):
            raise ConfigError(f"PackedLinear got {type(bias).__name__} for a bias; wanted a Parameter or None")
        if len(weight.shape) != 2:
            raise ShapeError(f"PackedLinear got a weight {weight.shape}; wanted (outputs, inputs)")
        if bias is not None and bias.shape != weight.shape[:1]:
            raise ShapeError(
                f"PackedLinear got bias {bias.shape} for a weight {weight.shape}; wanted {weight.shape[:1]}"
            )
        self.codes, self.scales = weight.codes, weight.scales
        self.group_scales, self.offset = weight.group_scales, weight.offset
        self.shape, self.block, self.scale_code = weight.shape, weight.block, weight.scale_code
        self.bias = bias

    @classmethod
    def of(cls, linear: Linear, *, block: int = 64, scales: ScaleCode = "float32") -> PackedLinear:
        """A packed copy of `linear`, which stays as it is; the bias is copied and as trainable as it was.

        Raises: ConfigError for another layer and for one with an adapter; else as `PackedWeight.pack`.
        """
        if not isinstance(linear, Linear):
            raise ConfigError(f"PackedLinear.of got {type(linear).__name__}; wanted a Linear")
        if linear.adapter is not None:
            raise ConfigError("PackedLinear.of got a Linear with an adapter; merge() or detach() it first")
        weight = PackedWeight.pack(linear.weight, block=block, scales=scales)
        return cls(weight, copied(linear.bias))

    def unpacked(self) -> Linear:
        """A Linear of the float32 weight that this one stands for, frozen, and of a copy of the bias; no adapter."""
        value = self.weight.unpack()
        weight = Parameter(Pending(value.shape), backend=value.backend, trainable=False)
        weight.replace(value.value)
        return Linear.of(weight, copied(self.bias))

    @property
    def weight(self) -> PackedWeight:
        """The packed weight, sharing its arrays with this module."""
        return PackedWeight(**self._fields())

    def __call__(self, x: Tensor) -> Tensor:
        """x: (..., inputs); returns (..., outputs)."""
        bias = None if self.bias is None else lowered(self.bias)
        return self._with_adapter(x, ops.quantized_linear(x, Packed(**self._fields()), bias))

    def _fields(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in FIELDS}


def copied(bias: Parameter | None) -> Parameter | None:
    """Another parameter of the same value, as trainable."""
    return None if bias is None else Parameter(bias.numpy(), backend=bias.backend, trainable=bias.trainable)
