"""Filling a blank model from the tensors of a file, one at a time."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from turret.models.base import LanguageModel
from turret.nn import Linear, Module, PackedLinear
from turret.nn.packing import parent_of
from turret.quant import PackedWeight
from turret.quant.bitsandbytes import PARTS, read_weight
from turret.quant.names import STATE
from turret.spi import CheckpointError, Host, NonFiniteError, ScaleCode, Shape
from turret.tensor import Parameter, tensor
from turret.tensor.pending import Pending

from .names import HEAD, Plan
from .source import TensorSource
from .tensor_writer import require_finite

Packing = tuple[int, ScaleCode]
"""Values in a block, and how its scales are kept."""


def require_tensors(
    source: TensorSource, plan: Plan, shapes: Mapping[str, Shape], *, ignored: Iterable[str], packed: Iterable[str] = ()
) -> None:
    """Checks names and shapes before anything is read. packed: stored names of weights in 4 bits, checked as they load.

    Raises: CheckpointError naming the first tensor that is missing, unexpected or of another shape.
    """
    held, in_bits = frozenset(source.names()), frozenset(packed)
    for name, piece in plan.items():
        if piece.stored not in held:
            raise CheckpointError(
                f"{source.path}: there is no tensor {piece.stored!r} for {name}; take the whole model"
            )
        got, wanted = source.shape(piece.stored), piece.stored_shape(shapes[name])
        if got != wanted and piece.stored not in in_bits:
            raise CheckpointError(
                f"{source.path}: tensor {piece.stored!r} has shape {got}; wanted {wanted}: the configuration is of "
                f"another model"
            )
    known = {piece.stored for piece in plan.values()} | set(ignored)
    known |= {name for stored in in_bits for name in parts_of(stored)}
    if extra := sorted(held - known):
        more = f" and {len(extra) - 1} more" if len(extra) > 1 else ""
        raise CheckpointError(
            f"{source.path}: tensor {extra[0]!r:.80}{more} has no place in this model; the configuration is of another"
        )


def parts_of(stored: str) -> list[str]:
    """The names of the arrays that bitsandbytes keeps beside a packed weight."""
    return [f"{stored}.{part}" for part in PARTS] + [f"{stored}.{STATE}nf4"]


def fill(
    model: LanguageModel,
    source: TensorSource,
    plan: Plan,
    *,
    packing: Packing | None = None,
    arrays: Mapping[str, Host] | None = None,
) -> None:
    """Gives every parameter of a blank `model` its value.

    packing: linear weights but the head's become 4-bit ones as they come. arrays: those of a checkpoint, raw, whose
    linear weights may be 4-bit ones already. At the peak there is one tensor of the file beside the model.
    Raises: NonFiniteError naming the tensor, and what the source, the packing and the backend raise.
    """
    together: dict[str, list[str]] = {}
    for name, piece in plan.items():
        together.setdefault(piece.stored, []).append(name)
    for stored, names in together.items():
        if arrays is not None and f"{stored}.{STATE}nf4" in arrays:
            for name in names:
                _put_packed(model, name, _stored_packed(model, name, arrays, stored))
            continue
        array = source.read(stored)
        require_finite(array, f"{source.path}: tensor {stored!r}")
        for name in names:
            _put(model, name, plan[name].taken(array), packing)
        del array
    for name, parameter in model.named_parameters():
        assert not isinstance(parameter.value, Pending), name


def _put(model: LanguageModel, name: str, host: Host, packing: Packing | None) -> None:
    path, _, last = name.rpartition(".")
    owner = _module(model, path)
    if packing is not None and last == "weight" and isinstance(owner, Linear) and name != HEAD:
        block, scales = packing
        value = tensor(np.ascontiguousarray(host), backend=owner.weight.backend)
        try:
            made = PackedWeight.pack(value, block=block, scales=scales)
        except NonFiniteError as error:
            raise NonFiniteError(f"{name}: {error}") from error
        _put_packed(model, name, made)
        return
    parameter: Parameter = getattr(owner, last)
    parameter.assign(parameter.backend.tools.storage.from_host(np.ascontiguousarray(host)))


def _put_packed(model: LanguageModel, name: str, weight: PackedWeight) -> None:
    """Puts a PackedLinear in the place of the blank Linear of this weight; its bias is still to come."""
    path = name.removesuffix(".weight")
    parent, last = parent_of(model, path)
    old: Any = getattr(parent, last)
    bias = None if old.bias is None else Parameter(Pending(old.bias.shape), backend=old.bias.backend)
    parent.replace_child(last, PackedLinear(weight, bias))


def _stored_packed(model: LanguageModel, name: str, arrays: Mapping[str, Host], stored: str) -> PackedWeight:
    owner = _module(model, name.removesuffix(".weight"))
    if not isinstance(owner, Linear) or not name.endswith(".weight"):
        raise CheckpointError(f"{stored}: stored in 4 bits; wanted floats for what is no linear weight")
    weight = read_weight(arrays, stored, backend=owner.weight.backend)
    if weight.shape != owner.weight.shape:
        raise CheckpointError(f"{stored}: a 4-bit weight {weight.shape}; wanted {owner.weight.shape}")
    return weight


def _module(model: Module, path: str) -> Module:
    parent, last = parent_of(model, path)
    found: Module = getattr(parent, last)
    return found
