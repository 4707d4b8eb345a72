"""The reduction slot over an array API namespace."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

from ..errors import ShapeError
from .dtypes import DTypes

Axis = int | tuple[int, ...]


class NamespaceReduction:
    """Keeps the dtype, which the standard's sums of integers do not; halves are folded in float32."""

    def __init__(self, xp: SimpleNamespace, dtypes: DTypes) -> None:
        self._xp, self._dtypes = xp, dtypes

    def sum(self, x: Any, /, *, axis: Axis, keepdims: bool = False) -> Any:
        return self._like(self._xp.sum(self._wide(x), axis=axis, keepdims=keepdims), x)

    def mean(self, x: Any, /, *, axis: Axis, keepdims: bool = False) -> Any:
        total = self._xp.sum(self._wide(x), axis=axis, keepdims=keepdims)
        # the namespaces' own means warn about an empty axis in ways that a `quiet` hook does not reach
        return self._like(self._xp.divide(total, float(math.prod(_sizes(x, axis)))), x)

    def max(self, x: Any, /, *, axis: Axis, keepdims: bool = False) -> Any:
        _check_not_empty("max", x, axis)
        return self._xp.max(x, axis=axis, keepdims=keepdims)

    def argmax(self, x: Any, /, *, axis: int, keepdims: bool = False) -> Any:
        _check_not_empty("argmax", x, axis)
        return self._xp.astype(self._xp.argmax(x, axis=axis, keepdims=keepdims), self._dtypes.get("int32"))

    def _wide(self, x: Any) -> Any:
        return self._xp.astype(x, self._dtypes.get("float32")) if self._dtypes.is_half(x) else x

    def _like(self, folded: Any, x: Any) -> Any:
        return folded if folded.dtype == x.dtype else self._xp.astype(folded, x.dtype)


def _sizes(x: Any, axis: Axis) -> list[int]:
    return [x.shape[a] for a in ((axis,) if isinstance(axis, int) else axis)]


def _check_not_empty(name: str, x: Any, axis: Axis) -> None:
    if 0 in _sizes(x, axis):
        raise ShapeError(
            f"{name} over an axis of size 0: shape {tuple(x.shape)}, axis {axis}; there is no greatest of nothing, "
            "leave empty arrays out before"
        )
