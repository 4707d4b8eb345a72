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
        self.rsqrt = rsqrt or self._composed_rsqrt
        self.erf = erf or ComposedErf(xp, dtypes)

    def _composed_rsqrt(self, x: Any, /) -> Any:
        if self._dtypes.is_half(x):  # two roundings to a half are one too many
            wide = self._xp.astype(x, self._dtypes.get("float32"))
            return self._xp.astype(self._composed_rsqrt(wide), x.dtype)
        return self._xp.divide(1.0, self._xp.sqrt(x))
