"""Every optional slot composed from the six required ones, and the filling of a backend's table with them."""

from __future__ import annotations

from turret.spi import OPTIONAL_SLOTS, A, Capabilities, Toolset

from .activation import DerivedActivation as DerivedActivation
from .adam import DerivedAdam as DerivedAdam
from .causal_attention import DerivedCausalAttention as DerivedCausalAttention
from .compile import DerivedCompile as DerivedCompile
from .flash_attention import DerivedFlashAttention as DerivedFlashAttention
from .linear import DerivedLinear as DerivedLinear
from .loss import DerivedLoss as DerivedLoss
from .normalization import DerivedNormalization as DerivedNormalization
from .paged_attention import DerivedPagedAttention as DerivedPagedAttention
from .quantized_linear import DerivedQuantizedLinear as DerivedQuantizedLinear
from .random import DerivedRandom as DerivedRandom
from .rope import DerivedRope as DerivedRope
from .softmax import DerivedSoftmax as DerivedSoftmax

ON_HOST: dict[str, str] = {"random": "numbers are drawn on the host and moved to the device"}
"""Derived slots that work on the host, and how."""


def fill(capabilities: Capabilities[A]) -> Toolset[A]:
    """The backend's own slots where it has them, derived ones elsewhere; only those it lacks are built."""
    c, r = capabilities, capabilities.required
    return Toolset(
        storage=r.storage,
        matmul=r.matmul,
        elementwise=r.elementwise,
        reduction=r.reduction,
        layout=r.layout,
        indexing=r.indexing,
        activation=DerivedActivation(r) if c.activation is None else c.activation,
        softmax=DerivedSoftmax(r) if c.softmax is None else c.softmax,
        normalization=DerivedNormalization(r) if c.normalization is None else c.normalization,
        linear=DerivedLinear(r) if c.linear is None else c.linear,
        loss=DerivedLoss(r) if c.loss is None else c.loss,
        rope=DerivedRope(r) if c.rope is None else c.rope,
        causal_attention=DerivedCausalAttention(r) if c.causal_attention is None else c.causal_attention,
        flash_attention=DerivedFlashAttention(r) if c.flash_attention is None else c.flash_attention,
        paged_attention=DerivedPagedAttention(r) if c.paged_attention is None else c.paged_attention,
        quantized_linear=DerivedQuantizedLinear(r) if c.quantized_linear is None else c.quantized_linear,
        adam=DerivedAdam(r) if c.adam is None else c.adam,
        random=DerivedRandom(r) if c.random is None else c.random,
        compile=DerivedCompile(r) if c.compile is None else c.compile,
        native=frozenset(name for name in OPTIONAL_SLOTS if getattr(c, name) is not None),
    )
