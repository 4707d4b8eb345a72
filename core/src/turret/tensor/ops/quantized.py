"""The affine map of a weight that stays packed, and what a packed weight's arrays must look like."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import NoReturn, get_args

from turret.derived.quantized_linear import GROUP
from turret.registry import OpenBackend
from turret.spi import ConfigError, DType, DTypeError, Packed, ScaleCode, Shape, ShapeError

from ..graph import Native
from ..value import Tensor, record, same_backend, same_floats

BLOCKS = tuple(2**power for power in range(5, 13))
"""The block sizes of an NF4 weight: 32 to 4096."""
SCALE_CODES: tuple[ScaleCode, ...] = get_args(ScaleCode)
AXES = 8
LARGEST_COUNT = 2**63 - 1
"""A packed weight has at most that many axes, and elements."""


def quantized_linear(x: Tensor, packed: Packed[Tensor], bias: Tensor | None = None) -> Tensor:
    """The map x @ weight^T + bias of an NF4 weight that is unpacked nowhere but inside, and kept packed for backward.

    x: (..., I), packed: of a weight (O, I), on the backend of x, bias: (O,) in the dtype of x; returns (..., O).
    The packed weight has no gradient; x and bias have one where they want it.
    Raises: ShapeError, DTypeError, BackendMismatch, ConfigError. Source: Dettmers et al. 2023 (QLoRA), section 3.
    """
    inputs = (x,) if bias is None else (x, bias)
    same_floats("quantized_linear", *inputs)
    backend = require_packed("quantized_linear", packed, x)
    sx, shape = x.shape, tuple(packed.shape)
    if len(shape) != 2 or not sx or sx[-1] != shape[1]:
        raise ShapeError(
            f"quantized_linear got x {sx} and a packed weight {shape}; wanted x (..., I) and a weight (O, I) with the "
            f"same I"
        )
    if bias is not None and bias.shape != shape[:1]:
        raise ShapeError(f"quantized_linear got bias {bias.shape} for a packed weight {shape}; wanted ({shape[0]},)")
    slot, reduction, weight = backend.tools.quantized_linear, backend.tools.reduction, native_packed(packed)
    leading = tuple(range(len(sx) - 1))

    def vjp(dy: Native, needs: tuple[bool, ...]) -> tuple[Native | None, ...]:
        dx = slot.linear_vjp_input(dy, weight) if needs[0] else None
        if len(needs) == 1:
            return (dx,)
        db = (reduction.sum(dy, axis=leading) if leading else dy) if needs[1] else None
        return dx, db

    out = slot.linear(x.value, weight, None if bias is None else bias.value)
    return record("quantized_linear", out, x, inputs, vjp)


def native_packed(packed: Packed[Tensor]) -> Packed[Native]:
    """The same packed weight as slots take it."""
    group_scales, offset = packed.group_scales, packed.offset
    return Packed(
        packed.codes.value,
        packed.scales.value,
        None if group_scales is None else group_scales.value,
        None if offset is None else offset.value,
        tuple(packed.shape),
        packed.block,
        packed.scale_code,
    )


def packed_shape(shape: Sequence[int]) -> Shape:
    """The shape of a packed weight as a tuple. Raises: ShapeError where no packed weight has it."""
    if (
        isinstance(shape, (list, tuple))
        and 1 <= len(shape) <= AXES
        and all(type(size) is int and 1 <= size <= LARGEST_COUNT for size in shape)
        and math.prod(shape) <= LARGEST_COUNT
    ):
        return tuple(shape)
    raise ShapeError(
        f"an NF4 weight got shape {shown(shape)}; wanted 1 to {AXES} whole numbers above 0 whose product is below 2^63"
    )


def shown(value: object) -> str:
    """The first 80 characters of a value for a message; what Python prints no text of is described."""
    try:
        return f"{value!r:.80}"
    except ValueError:  # more digits than sys.get_int_max_str_digits()
        return f"{type(value).__name__} (a number of too many digits)"


def packed_layout(shape: Shape, block: int, scale_code: ScaleCode) -> dict[str, tuple[DType, Shape]]:
    """The dtype and shape of every array of a packed weight of this shape, by the name of its field; not to be changed.

    Raises: ConfigError for a block size or a scale code that there is not, ShapeError as `packed_shape`.
    """
    if type(block) is not int or block not in BLOCKS:
        raise ConfigError(f"an NF4 weight got blocks of {shown(block)}; wanted one of {', '.join(map(str, BLOCKS))}")
    if scale_code not in SCALE_CODES:
        raise ConfigError(f"an NF4 weight got scales {shown(scale_code)}; wanted one of {', '.join(SCALE_CODES)}")
    return _layout(math.prod(packed_shape(shape)), block, scale_code)


@functools.lru_cache(maxsize=1024)
def _layout(count: int, block: int, scale_code: ScaleCode) -> dict[str, tuple[DType, Shape]]:
    blocks = -(-count // block)
    codes: tuple[DType, Shape] = ("uint8", ((count + 1) // 2,))
    if scale_code == "float32":
        return {"codes": codes, "scales": ("float32", (blocks,))}
    groups = -(-blocks // GROUP)
    return {
        "codes": codes,
        "scales": ("uint8", (blocks,)),
        "group_scales": ("float32", (groups,)),
        "offset": ("float32", ()),
    }


def require_packed(name: str, packed: Packed[Tensor], *beside: Tensor) -> OpenBackend:
    """The one backend of `beside` and of a packed weight's arrays, which must fit its shape, block size and scale code.

    Raises: ShapeError, DTypeError, ConfigError, BackendMismatch.
    """
    if not isinstance(packed, Packed):
        raise DTypeError(
            f"{name} got {type(packed).__name__} for the packed weight; wanted a turret.spi.Packed of tensors, which a "
            f"PackedWeight has as .packed"
        )
    layout = packed_layout(packed.shape, packed.block, packed.scale_code)
    found = []
    for field in ("codes", "scales", "group_scales", "offset"):
        array: Tensor | None = getattr(packed, field)
        dtype, shape = layout.get(field, (None, None))
        if array is None and dtype is None:
            continue
        if not isinstance(array, Tensor) or array.dtype != dtype or array.shape != shape:
            _refuse_array(name, packed, field, array, dtype, shape)
        found.append(array)
    arrays = [*beside, *found]
    return same_backend(name, arrays[0], *arrays[1:])


def _refuse_array(
    name: str, packed: Packed[Tensor], field: str, array: object, dtype: DType | None, shape: Shape | None
) -> NoReturn:
    where = f"{name}: a packed weight {packed.shape} in blocks of {packed.block} with {packed.scale_code} scales"
    got = f"{array.dtype} {array.shape}" if isinstance(array, Tensor) else type(array).__name__
    wanted = "none" if dtype is None else f"a Tensor of {dtype} {shape}"
    wrong_dtype = not isinstance(array, Tensor) or (dtype is not None and array.dtype != dtype)
    raise (DTypeError if wrong_dtype else ShapeError)(f"{where} got {field} {got}; wanted {wanted}")
