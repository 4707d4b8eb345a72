"""What every reader of a model file offers: named tensors, each decoded to float32 when it is asked for."""

from __future__ import annotations

from pathlib import Path
from types import TracebackType
from typing import Protocol, Self

from turret.spi import Host


class TensorSource(Protocol):
    """The tensors of an open model file by name. No name but those of `names` may be asked for."""

    @property
    def path(self) -> Path:
        """What was opened."""
        ...

    def names(self) -> tuple[str, ...]:
        """The names of the tensors in the order of the file."""
        ...

    def shape(self, name: str) -> tuple[int, ...]:
        """The shape as NumPy has it: rows first. Raises: CheckpointError for a name that is not there."""
        ...

    def kind(self, name: str) -> str:
        """How the file stores the tensor ("F32", "BF16", "Q4_1"). Raises: CheckpointError as `shape`."""
        ...

    def read(self, name: str) -> Host:
        """The tensor as float32, C-contiguous, the caller's own. Values may be infinite or NaN: nobody looked.

        Raises: CheckpointError as `shape`, for a tensor that holds no real numbers, and for a closed file; Unsupported
        for a kind that cannot be decoded.
        """
        ...

    def close(self) -> None:
        """Lets go of the file; closing twice is fine."""
        ...

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...
