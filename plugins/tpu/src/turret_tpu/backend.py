"""The opened device: JAX arrays, XLA programs, and nothing on the host."""

from __future__ import annotations

from collections import Counter

from turret.spi import BackendUnavailable, Capabilities, Required

from .activation import TpuActivation
from .adam import TpuAdam
from .arrays import X
from .causal_attention import TpuCausalAttention
from .compile import TpuCompile
from .elementwise import TpuElementwise
from .flash_attention import flash_attention
from .indexing import TpuIndexing
from .layout import TpuLayout
from .linear import TpuLinear
from .loss import TpuLoss
from .matmul import TpuMatmul
from .normalization import TpuNormalization
from .place import Place
from .probe import find, why_not
from .quantized_linear import TpuQuantizedLinear
from .reduction import TpuReduction
from .rope import TpuRope
from .softmax import TpuSoftmax
from .storage import TpuStorage


class TpuBackend:
    """Every slot on one PJRT device. It sets no environment variable and changes no setting of JAX.

    Arrays are committed to the device, so that programs follow them and JAX's default device does not matter. Only
    `storage.from_host` and `storage.to_host` cross to the host. `derived_calls` counts, per slot, the calls that a
    native slot passed on to `turret.derived`.
    """

    def __init__(self, device: str = "") -> None:
        if (reason := why_not(device)) is not None:
            raise BackendUnavailable(reason)
        place = Place(find(device), f"tpu:{device}" if device else "tpu", interpret=device == "interpret")
        self.derived_calls: Counter[str] = Counter()
        required: Required[X] = Required(
            storage=TpuStorage(place),
            matmul=TpuMatmul(place),
            elementwise=TpuElementwise(place),
            reduction=TpuReduction(place),
            layout=TpuLayout(place),
            indexing=TpuIndexing(place),
        )
        self._capabilities = Capabilities(
            required=required,
            activation=TpuActivation(place),
            softmax=TpuSoftmax(place),
            normalization=TpuNormalization(place),
            linear=TpuLinear(place),
            loss=TpuLoss(place),
            rope=TpuRope(place),
            causal_attention=TpuCausalAttention(place),
            flash_attention=flash_attention(place, required, self.derived_calls),
            quantized_linear=TpuQuantizedLinear(place, required, self.derived_calls),
            adam=TpuAdam(place),
            compile=TpuCompile(place),
        )

    def capabilities(self) -> Capabilities[X]:
        return self._capabilities

    def close(self) -> None:
        """Nothing to give back: the device belongs to JAX, and an array's memory to the array."""
