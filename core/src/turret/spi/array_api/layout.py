"""The layout slot over an array API namespace."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

from ..arrays import Shape
from .dtypes import DTypes
from .storage import NamespaceStorage


class NamespaceLayout:
    """Padding is concatenation with constant blocks; the rest is the namespace's own."""

    def __init__(self, xp: SimpleNamespace, dtypes: DTypes, storage: NamespaceStorage) -> None:
        self._xp, self._dtypes, self._storage = xp, dtypes, storage

    def reshape(self, x: Any, shape: Shape, /) -> Any:
        return self._xp.reshape(x, shape)

    def transpose(self, x: Any, axes: tuple[int, ...], /) -> Any:
        return self._xp.permute_dims(x, axes)

    def slice(self, x: Any, start: Shape, stop: Shape, /, *, step: Shape | None = None) -> Any:
        if not x.shape:
            return x  # NumPy answers x[()] with a scalar
        bounds = zip(start, stop, step or (1,) * len(start), strict=True)
        return x[tuple(slice(*bound) for bound in bounds)]

    def concatenate(self, xs: Sequence[Any], /, *, axis: int) -> Any:
        return self._xp.concat(list(xs), axis=axis)

    def pad(self, x: Any, widths: Sequence[tuple[int, int]], /, *, value: float = 0.0) -> Any:
        dtype = self._dtypes.name(x)
        for axis, pair in enumerate(widths):
            before, after = (
                [self._storage.full((*x.shape[:axis], width, *x.shape[axis + 1 :]), value, dtype=dtype)]
                if width
                else []
                for width in pair
            )
            if before or after:
                x = self._xp.concat([*before, x, *after], axis=axis)
        return x

    def broadcast_to(self, x: Any, shape: Shape, /) -> Any:
        return self._xp.broadcast_to(x, shape)
