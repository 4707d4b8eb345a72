"""The opened device: CuPy's arrays, cuBLAS and kernels of our own."""

from __future__ import annotations

from typing import Any

from turret.spi import BackendUnavailable, Capabilities, Required

from .activation import CudaActivation
from .adam import CudaAdam
from .causal_attention import CudaCausalAttention
from .compile import CudaCompile
from .elementwise import CudaElementwise
from .flash_attention import CudaFlashAttention
from .indexing import CudaIndexing
from .layout import CudaLayout
from .linear import CudaLinear
from .loss import CudaLoss
from .matmul import CudaMatmul
from .normalization import CudaNormalization
from .place import place_of
from .probe import why_not
from .quantized_linear import CudaQuantizedLinear
from .reduction import CudaReduction
from .rope import CudaRope
from .softmax import CudaSoftmax
from .storage import CudaStorage


class CudaBackend:
    """Every slot on one GPU. Current device, current stream and CuPy's own memory pool stay as they are."""

    def __init__(self, device: str = "") -> None:
        if (reason := why_not(device)) is not None:
            raise BackendUnavailable(reason)
        self._place = place = place_of(device)
        required: Required[Any] = Required(
            storage=CudaStorage(place),
            matmul=CudaMatmul(place),
            elementwise=CudaElementwise(place),
            reduction=CudaReduction(place),
            layout=CudaLayout(place),
            indexing=CudaIndexing(place),
        )
        self._capabilities = Capabilities(
            required=required,
            activation=CudaActivation(place),
            softmax=CudaSoftmax(place),
            normalization=CudaNormalization(place),
            linear=CudaLinear(place),
            loss=CudaLoss(place),
            rope=CudaRope(place),
            causal_attention=CudaCausalAttention(place),
            flash_attention=CudaFlashAttention(place),
            quantized_linear=CudaQuantizedLinear(place),
            adam=CudaAdam(place),
            compile=CudaCompile(place),
        )

    def capabilities(self) -> Capabilities[Any]:
        return self._capabilities

    def close(self) -> None:
        """Waits, and gives memory that no array uses back to the device."""
        self._place.release()
