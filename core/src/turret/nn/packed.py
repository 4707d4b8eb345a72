"""The affine map of a packed, frozen weight."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from turret.quant import PackedWeight
from turret.spi import ConfigError, Packed, ScaleCode, ShapeError
from turret.tensor import Parameter, Tensor, ops

from .linear import Linear
from .module import Module
from .precision import lowered

FIELDS = tuple(field.name for field in fields(Packed))


class PackedLinear(Module):
    """x @ weight^T + bias with an NF4 weight: what stands in for a Linear whose weight is not trained.

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

        Raises: ConfigError for another layer; else as `PackedWeight.pack`.
        """
        if not isinstance(linear, Linear):
            raise ConfigError(f"PackedLinear.of got {type(linear).__name__}; wanted a Linear")
        weight, bias = PackedWeight.pack(linear.weight, block=block, scales=scales), linear.bias
        if bias is None:
            return cls(weight)
        return cls(weight, Parameter(bias.numpy(), backend=bias.backend, trainable=bias.trainable))

    @property
    def weight(self) -> PackedWeight:
        """The packed weight, sharing its arrays with this module."""
        return PackedWeight(**self._fields())

    def __call__(self, x: Tensor) -> Tensor:
        """x: (..., inputs); returns (..., outputs)."""
        return ops.quantized_linear(x, Packed(**self._fields()), None if self.bias is None else lowered(self.bias))

    def _fields(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in FIELDS}
