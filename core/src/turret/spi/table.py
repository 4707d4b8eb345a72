"""The table a backend hands over, and the table consumers read."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Generic

from .arrays import A
from .optional import (
    Activation,
    Adam,
    CausalAttention,
    Compile,
    FlashAttention,
    Linear,
    Loss,
    Normalization,
    PagedAttention,
    QuantizedLinear,
    Random,
    Rope,
    Softmax,
)
from .required import Elementwise, Indexing, Layout, Matmul, Reduction, Storage


@dataclass(frozen=True, slots=True, kw_only=True)
class Required(Generic[A]):
    """The six slots every backend fills."""

    storage: Storage[A]
    matmul: Matmul[A]
    elementwise: Elementwise[A]
    reduction: Reduction[A]
    layout: Layout[A]
    indexing: Indexing[A]


@dataclass(frozen=True, slots=True, kw_only=True)
class Capabilities(Generic[A]):
    """What a backend declares; None means "compose it"."""

    required: Required[A]
    activation: Activation[A] | None = None
    softmax: Softmax[A] | None = None
    normalization: Normalization[A] | None = None
    linear: Linear[A] | None = None
    loss: Loss[A] | None = None
    rope: Rope[A] | None = None
    causal_attention: CausalAttention[A] | None = None
    flash_attention: FlashAttention[A] | None = None
    paged_attention: PagedAttention[A] | None = None
    quantized_linear: QuantizedLinear[A] | None = None
    adam: Adam[A] | None = None
    random: Random[A] | None = None
    compile: Compile[A] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Toolset(Generic[A]):
    """What consumers hold: every slot filled. `native` names the optional ones the backend brought itself."""

    storage: Storage[A]
    matmul: Matmul[A]
    elementwise: Elementwise[A]
    reduction: Reduction[A]
    layout: Layout[A]
    indexing: Indexing[A]
    activation: Activation[A]
    softmax: Softmax[A]
    normalization: Normalization[A]
    linear: Linear[A]
    loss: Loss[A]
    rope: Rope[A]
    causal_attention: CausalAttention[A]
    flash_attention: FlashAttention[A]
    paged_attention: PagedAttention[A]
    quantized_linear: QuantizedLinear[A]
    adam: Adam[A]
    random: Random[A]
    compile: Compile[A]
    native: frozenset[str]


REQUIRED_SLOTS: tuple[str, ...] = tuple(f.name for f in fields(Required))
OPTIONAL_SLOTS: tuple[str, ...] = tuple(f.name for f in fields(Capabilities) if f.name != "required")
