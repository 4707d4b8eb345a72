"""The elementwise slot over an array API namespace."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from .dtypes import DTypes
from .erf import ComposedErf


class NamespaceElementwise:
    """The namespace's own functions, with no frame between where they already keep the contract."""

    def __init__(
        self,
        xp: SimpleNamespace,
        dtypes: DTypes,
        rsqrt: Callable[..., Any] | None,
        erf: Callable[..., Any] | None,
    ) -> None:
        self._xp, self._dtypes = xp, dtypes
        self.add, self.subtract, self.multiply, self.divide = xp.add, xp.subtract, xp.multiply, xp.divide
        self.maximum, self.minimum, self.negative = xp.maximum, xp.minimum, xp.negative
        self.exp, self.log, self.sqrt, self.tanh = xp.exp, xp.log, xp.sqrt, xp.tanh
        self.isfinite, self.equal, self.less, self.less_equal = xp.isfinite, xp.equal, xp.less, xp.less_equal
        self.logical_and, self.where = xp.logical_and, xp.where
        self.rsqrt = self._widening(rsqrt or self._composed_rsqrt)
        self.erf = self._widening(erf) if erf else ComposedErf(xp, dtypes)

    def _widening(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """`function` of float32 for halves: two roundings to a half are one too many."""
        astype, dtypes = self._xp.astype, self._dtypes

        def widening(x: Any, /) -> Any:
            return astype(function(astype(x, dtypes.get("float32"))), x.dtype) if dtypes.is_half(x) else function(x)

        return widening

    def _composed_rsqrt(self, x: Any, /) -> Any:
        return self._xp.divide(1.0, self._xp.sqrt(x))
