"""A packed NF4 weight: made from floats, moved, unpacked, taken apart and put together again."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NoReturn, Self

import numpy as np

from turret.registry import OpenBackend, open_backend
from turret.spi import (
    FLOATS,
    ConfigError,
    DType,
    DTypeError,
    Host,
    NonFiniteError,
    Packed,
    ScaleCode,
    Shape,
    ShapeError,
    host_dtype,
)
from turret.tensor import Tensor
from turret.tensor.ops.quantized import native_packed, packed_layout, packed_shape, require_packed
from turret.tensor.tracing import refuse_host

ARRAYS = ("codes", "scales", "group_scales", "offset")
ZERO = 7
"""The code of the level 0: what fills the low nibble after an odd number of values."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PackedWeight:
    """A weight of `shape` as 4-bit NormalFloat: two values in a byte, a scale for every `block` of them.

    The fields are those of `turret.spi.Packed`, with tensors of one backend for arrays, and fit each other. It is
    frozen and has no gradient. Source: Dettmers et al. 2023 (QLoRA), section 3.
    """

    codes: Tensor
    scales: Tensor
    group_scales: Tensor | None = None
    offset: Tensor | None = None
    shape: Shape
    block: int
    scale_code: ScaleCode

    def __post_init__(self) -> None:
        object.__setattr__(self, "shape", packed_shape(self.shape))
        require_packed("PackedWeight", self.packed)

    @classmethod
    def pack(cls, weight: Tensor, *, block: int = 64, scales: ScaleCode = "float32") -> Self:
        """The nearest of sixteen levels times the largest magnitude of each block, taken row by row.

        weight: floats of any shape with at least one element. block: a power of two from 32 to 4096. scales: "float32"
        takes 4.5 bits a weight with blocks of 64; "dynamic" and "linear" keep a scale in a byte and take 4.13, as
        bitsandbytes does it, and a little closer.
        Raises: ConfigError, DTypeError, ShapeError; NonFiniteError for NaN and infinity, saying how many and where, and
        for a weight so large that its coded scales overflow.
        """
        refuse_host("a weight is packed", "pack it before the step")
        if not isinstance(weight, Tensor) or weight.dtype not in FLOATS:
            got = f"dtype {weight.dtype}" if isinstance(weight, Tensor) else type(weight).__name__
            raise DTypeError(f"PackedWeight.pack got {got}; wanted a Tensor of {', '.join(sorted(FLOATS))}")
        packed_layout(weight.shape, block, scales)
        backend = weight.backend
        value = Tensor(backend.tools.storage.cast(weight.value, "float32"), backend, "float32")
        if not _is_finite(value):
            _refuse_weight(value)
        made = backend.tools.quantized_linear.pack(value.value, block=block, scales=scales)
        layout = packed_layout(weight.shape, block, scales)
        tensors = {name: Tensor(getattr(made, name), backend, layout[name][0]) for name in layout}
        if endless := [name for name, each in tensors.items() if each.dtype == "float32" and not _is_finite(each)]:
            raise NonFiniteError(
                f"PackedWeight.pack got a weight {weight.shape} so large that with {scales} scales its "
                f'{" and ".join(endless)} overflow float32; use scales="float32", or scale the weight down'
            )
        return cls(**tensors, shape=weight.shape, block=block, scale_code=scales)

    @classmethod
    def from_arrays(
        cls,
        arrays: Mapping[str, Host],
        *,
        shape: Sequence[int],
        block: int,
        scale_code: ScaleCode,
        backend: str | OpenBackend | None = None,
    ) -> Self:
        """The weight whose `arrays()` these are, on `backend` (default: the current one).

        Raises: ConfigError for missing and unknown names, and for a low nibble after the last value that is not the
        code of 0; DTypeError, ShapeError, NonFiniteError; each says what was got and wanted.
        """
        sizes = packed_shape(shape)
        layout = packed_layout(sizes, block, scale_code)
        missing, unknown = sorted(layout.keys() - arrays.keys()), sorted(arrays.keys() - layout.keys())
        if missing or unknown:
            raise ConfigError(f"arrays of a weight with {scale_code} scales: missing {missing}, unknown {unknown}")
        for name, (dtype, wanted) in layout.items():
            _check_array(f"{name} of a weight {sizes} in blocks of {block}", arrays[name], dtype, wanted)
        if math.prod(sizes) % 2 and (low := int(arrays["codes"][-1]) % 16) != ZERO:
            raise ConfigError(
                f"a weight {sizes} has an odd number of values and {low} in the nibble after; wanted {ZERO}"
            )
        opened = open_backend(backend)
        put = opened.tools.storage.from_host
        tensors = {name: Tensor(put(arrays[name], dtype=kind), opened, kind) for name, (kind, _) in layout.items()}
        return cls(**tensors, shape=sizes, block=block, scale_code=scale_code)

    @property
    def packed(self) -> Packed[Tensor]:
        """What `ops.quantized_linear` takes."""
        return Packed(self.codes, self.scales, self.group_scales, self.offset, self.shape, self.block, self.scale_code)

    @property
    def backend(self) -> OpenBackend:
        """Where the arrays are."""
        return self.codes.backend

    @property
    def bytes(self) -> int:
        """What the arrays take."""
        layout = packed_layout(self.shape, self.block, self.scale_code)
        return sum(math.prod(shape) * host_dtype(dtype).itemsize for dtype, shape in layout.values())

    @property
    def bits_per_weight(self) -> float:
        """What the arrays take for each value of the weight."""
        return 8 * self.bytes / math.prod(self.shape)

    def unpack(self) -> Tensor:
        """The float32 weight that this one stands for."""
        value = self.backend.tools.quantized_linear.unpack(native_packed(self.packed))
        return Tensor(value, self.backend, "float32")

    def to(self, backend: str | OpenBackend) -> Self:
        """The same bytes on another backend; this weight itself where it is there already."""
        target = open_backend(backend)
        if target is self.backend:
            return self
        return self.from_arrays(
            self.arrays(), shape=self.shape, block=self.block, scale_code=self.scale_code, backend=target
        )

    def arrays(self) -> dict[str, Host]:
        """Host copies of the arrays by the names of the fields, without those that are None."""
        tensors = {name: getattr(self, name) for name in ARRAYS}
        return {name: tensor.numpy() for name, tensor in tensors.items() if tensor is not None}


def _check_array(what: str, array: Host, dtype: DType, wanted: Shape) -> None:
    if not isinstance(array, np.ndarray):
        raise DTypeError(f"{what}: got {type(array).__name__}; wanted a NumPy array of {dtype}")
    if array.dtype.name != dtype:
        raise DTypeError(f"{what}: got dtype {array.dtype.name}; wanted {dtype}")
    if array.shape != wanted:
        raise ShapeError(f"{what}: got shape {array.shape}; wanted {wanted}")
    if dtype == "float32" and not (finite := np.isfinite(array)).all():
        raise NonFiniteError(f"{what}: got {array.size - int(finite.sum())} NaN or infinite; wanted finite numbers")


def _is_finite(values: Tensor) -> bool:
    """Whether all are; at most two numbers come to the host."""
    tools, axes = values.backend.tools, tuple(range(values.ndim))
    if not axes:
        return math.isfinite(values.item())
    ends = (tools.reduction.max(x, axis=axes) for x in (values.value, tools.elementwise.negative(values.value)))
    return all(math.isfinite(float(tools.storage.to_host(end))) for end in ends)


def _refuse_weight(weight: Tensor) -> NoReturn:
    """The whole weight comes to the host, to say what is wrong."""
    bad = np.argwhere(~np.isfinite(weight.numpy()))
    first = tuple(int(i) for i in bad[0])
    raise NonFiniteError(
        f"PackedWeight.pack got a weight {weight.shape} with {len(bad)} NaN or infinite in float32, the first at "
        f"{first}; wanted finite numbers: mend the weight"
    )
