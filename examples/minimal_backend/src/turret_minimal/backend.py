"""The opened backend: six slots in a table, everything else composed from them."""

from __future__ import annotations

from turret.spi import BackendUnavailable, Capabilities, Required

from .elementwise import MinimalElementwise
from .indexing import MinimalIndexing
from .layout import MinimalLayout
from .matmul import MinimalMatmul
from .probe import why_not
from .reduction import MinimalReduction
from .storage import MinimalStorage, X


class MinimalBackend:
    """Opening twice gives two independent objects; there is nothing to share and nothing to give back."""

    def __init__(self, device: str = "") -> None:
        if (reason := why_not(device)) is not None:
            raise BackendUnavailable(reason)
        # The table is made once: `capabilities` hands out the same objects at every call. A native softmax would be
        # one more argument here, `softmax=MinimalSoftmax()`, and one more word in the plugin's `provides`.
        self._capabilities: Capabilities[X] = Capabilities(
            required=Required(
                storage=MinimalStorage(),
                matmul=MinimalMatmul(),
                elementwise=MinimalElementwise(),
                reduction=MinimalReduction(),
                layout=MinimalLayout(),
                indexing=MinimalIndexing(),
            )
        )

    def capabilities(self) -> Capabilities[X]:
        return self._capabilities

    def close(self) -> None:
        """Allowed twice, like every close."""
