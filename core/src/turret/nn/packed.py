"""The affine map of a packed, frozen weight."""

from __future__ import annotations

from turret.quant import PackedWeight
from turret.spi import Packed, ScaleCode, ShapeError
from turret.tensor import Parameter, Tensor, ops

from .linear import Linear
from .module import Module
from .precision import lowered


class PackedLinear(Module):
    """x @ weight^T + bias with an NF4 weight: what stands in for a Linear whose weight is not trained.

    The weight's arrays are buffers: moved and captured with the module, in no `state_dict`; `weight` has them, for
    `turret.quant.save_packed`. bias: (outputs,) or none, the only parameter.
    """

    def __init__(self, weight: PackedWeight, bias: Parameter | None = None) -> None:
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

        Raises: as `PackedWeight.pack`.
        """
        weight, bias = PackedWeight.pack(linear.weight, block=block, scales=scales), linear.bias
        if bias is None:
            return cls(weight)
        return cls(weight, Parameter(bias.numpy(), backend=bias.backend, trainable=bias.trainable))

    @property
    def weight(self) -> PackedWeight:
        """The packed weight, sharing its arrays with this module."""
        return PackedWeight(
            codes=self.codes,
            scales=self.scales,
            group_scales=self.group_scales,
            offset=self.offset,
            shape=self.shape,
            block=self.block,
            scale_code=self.scale_code,
        )

    def __call__(self, x: Tensor) -> Tensor:
        """x: (..., inputs); returns (..., outputs)."""
        packed = Packed(
            self.codes, self.scales, self.group_scales, self.offset, self.shape, self.block, self.scale_code
        )
        return ops.quantized_linear(x, packed, None if self.bias is None else lowered(self.bias))
