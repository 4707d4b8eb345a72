"""The slot of 4-bit NormalFloat weights."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, Literal, Protocol

from ..arrays import A, Shape

ScaleCode = Literal["float32", "dynamic", "linear"]
"""How block scales are kept: as they are; or as bytes on bitsandbytes' dynamic map, or on (q - 128) / 127."""


@dataclass(frozen=True, slots=True)
class Packed(Generic[A]):
    """An NF4 weight of `shape` with n elements in blocks of `block`.

    codes: uint8 (ceil(n/2),), first value in the high nibble; the low nibble after an odd n is the code of 0. scales:
    float32 (blocks,), the largest magnitude of each block; or, where scale_code is not "float32", uint8 codes of the
    scales less `offset`, with float32 group_scales (one for 256 scales) and offset (rank 0), the mean of the scales:
    its last bits are the backend's own, and the codes follow it. A scale is group_scale * level + offset, and under
    "linear" at least 0. Source: Dettmers et al. 2023 (QLoRA), section 3.
    """

    codes: A
    scales: A
    group_scales: A | None
    offset: A | None
    shape: Shape
    block: int
    scale_code: ScaleCode


class QuantizedLinear(Protocol[A]):
    """A linear map whose weight stays packed. Block sizes: powers of two from 32 to 4096."""

    def pack(self, weight: A, /, *, block: int, scales: ScaleCode) -> Packed[A]:
        """The nearest of the sixteen levels times the block's scale, row-major over `weight`; ties go down.

        Coded scales take the nearest of 256 levels times the group's scale, and ties go down as well.
        """
        ...

    def unpack(self, packed: Packed[A], /) -> A:
        """The float32 weight that the packed one stands for."""
        ...

    def linear(self, x: A, packed: Packed[A], bias: A | None, /) -> A:
        """x: (..., I) @ unpack(packed)^T + bias."""
        ...

    def linear_vjp_input(self, dy: A, packed: Packed[A], /) -> A:
        """dy: (..., O); returns (..., I). A packed weight itself has no gradient."""
        ...
