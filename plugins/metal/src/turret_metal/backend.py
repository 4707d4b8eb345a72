"""The opened device: MLX on the GPU, or on its CPU device."""

from __future__ import annotations

import mlx.core as mx

from turret.spi import BackendUnavailable, Capabilities, Required

from .activation import MetalActivation
from .adam import MetalAdam
from .causal_attention import MetalCausalAttention
from .compile import MetalCompile
from .elementwise import MetalElementwise
from .flash_attention import MetalFlashAttention
from .indexing import MetalIndexing
from .layout import MetalLayout
from .linear import MetalLinear
from .loss import MetalLoss
from .matmul import MetalMatmul
from .normalization import MetalNormalization
from .probe import why_not
from .quantized_linear import MetalQuantizedLinear
from .reduction import MetalReduction
from .rope import MetalRope
from .softmax import MetalSoftmax
from .storage import MetalStorage
from .stream import stream_of


class MetalBackend:
    """Every slot on one device. Default device and default streams of the process stay as they are."""

    def __init__(self, device: str = "") -> None:
        if (reason := why_not(device)) is not None:
            raise BackendUnavailable(reason)
        do = stream_of(device)
        do.check()
        required: Required[mx.array] = Required(
            storage=MetalStorage(do),
            matmul=MetalMatmul(do),
            elementwise=MetalElementwise(do),
            reduction=MetalReduction(do),
            layout=MetalLayout(do),
            indexing=MetalIndexing(do),
        )
        self._capabilities = Capabilities(
            required=required,
            activation=MetalActivation(do),
            softmax=MetalSoftmax(do),
            normalization=MetalNormalization(do),
            linear=MetalLinear(do),
            loss=MetalLoss(do),
            rope=MetalRope(do),
            causal_attention=MetalCausalAttention(do),
            flash_attention=MetalFlashAttention(do),
            quantized_linear=MetalQuantizedLinear(do),
            adam=MetalAdam(do),
            compile=MetalCompile(do),
        )

    def capabilities(self) -> Capabilities[mx.array]:
        return self._capabilities

    def close(self) -> None:
        """Gives back the memory that MLX keeps for later results; the stream belongs to the process."""
        mx.clear_cache()
