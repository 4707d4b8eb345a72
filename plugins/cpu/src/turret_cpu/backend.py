"""The opened CPU: NumPy for what NumPy does well, our own kernels for the rest."""

from __future__ import annotations

from collections import Counter

import numpy as np
import numpy.typing as npt

from turret.spi import BackendUnavailable, Capabilities, Required

from .activation import CpuActivation
from .adam import CpuAdam
from .causal_attention import CpuCausalAttention
from .elementwise import CpuElementwise
from .flash_attention import CpuFlashAttention
from .indexing import CpuIndexing
from .layout import CpuLayout
from .linear import CpuLinear
from .loss import CpuLoss
from .matmul import CpuMatmul
from .memory import BLOCKS
from .normalization import CpuNormalization
from .probe import why_not
from .quantized_linear import CpuQuantizedLinear
from .reduction import CpuReduction
from .rope import CpuRope
from .softmax import CpuSoftmax
from .storage import CpuStorage


class CpuBackend:
    """Every slot on this machine's cores. It sets no environment variable and changes no library's thread count.

    `derived_calls` counts, per slot, the calls that a native slot passed on to `turret.derived`: those that are not
    float32, or empty.
    """

    def __init__(self, device: str = "") -> None:
        if (reason := why_not(device)) is not None:
            raise BackendUnavailable(reason)
        self.derived_calls: Counter[str] = Counter()
        required: Required[npt.NDArray[np.generic]] = Required(
            storage=CpuStorage(),
            matmul=CpuMatmul(),
            elementwise=CpuElementwise(),
            reduction=CpuReduction(),
            layout=CpuLayout(),
            indexing=CpuIndexing(),
        )
        calls = self.derived_calls
        self._capabilities = Capabilities(
            required=required,
            activation=CpuActivation(required, calls),
            softmax=CpuSoftmax(required, calls),
            normalization=CpuNormalization(required, calls),
            linear=CpuLinear(required, calls),
            loss=CpuLoss(required, calls),
            rope=CpuRope(required, calls),
            causal_attention=CpuCausalAttention(required, calls),
            flash_attention=CpuFlashAttention(required, calls),
            quantized_linear=CpuQuantizedLinear(required, calls),
            adam=CpuAdam(required, calls),
        )

    def capabilities(self) -> Capabilities[npt.NDArray[np.generic]]:
        return self._capabilities

    def close(self) -> None:
        """Gives back the memory kept for results; the worker threads sleep and belong to the process."""
        BLOCKS.clear()
