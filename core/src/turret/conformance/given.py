"""What a case hands to a backend: host values, the dtype they are exact in, and how they lie in memory."""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from turret.spi import FLOATS, DType, Host, Layout, Packed, Shape, Storage, host_dtype

from .tolerances import COMPUTED_IN, FORMATS
from .tracked import Tracked

View = Literal["whole", "transposed", "strided", "offset", "repeated"]
"""whole: contiguous. transposed: the axes reversed in memory. strided: every second element of the last axis. offset:
between foreign rows. repeated: one row broadcast along the first axis."""


@dataclass(frozen=True, slots=True)
class Given:
    """One array. `host` holds values that `dtype` represents exactly, in `host_dtype(dtype)`."""

    host: Host
    dtype: DType
    view: View = "whole"

    @property
    def shape(self) -> Shape:
        return self.host.shape

    @property
    def exact(self) -> Host:
        """float64 for floats, the integers and booleans themselves otherwise."""
        return self.host.astype(np.float64) if self.dtype in FLOATS else self.host

    @property
    def tracked(self) -> Any:
        """What an oracle gets: exact values with an error of zero so far; integers and booleans as they are."""
        if self.dtype not in FLOATS:
            return self.host
        return Tracked(self.exact, 0.0, FORMATS[COMPUTED_IN[self.dtype]].unit)

    def put(self, storage: Storage[Any], layout: Layout[Any]) -> tuple[Any, Any]:
        """(the array on the device, what has to stay bit-equal: the array or the whole that it is a view of)."""
        host, dtype = self.host, self.dtype
        if self.view == "whole" or not host.ndim or not host.size:
            array = storage.from_host(host, dtype=dtype)
            return array, array
        zeros, sizes = (0,) * host.ndim, host.shape
        if self.view == "transposed":
            axes = tuple(reversed(range(host.ndim)))
            whole = storage.from_host(np.ascontiguousarray(host.transpose(axes)), dtype=dtype)
            return layout.transpose(whole, axes), whole
        if self.view == "repeated":
            whole = storage.from_host(np.ascontiguousarray(host[:1]), dtype=dtype)
            return layout.broadcast_to(whole, sizes), whole
        if self.view == "strided":
            wide = np.full((*sizes[:-1], 2 * sizes[-1]), _poison(dtype), host.dtype)
            wide[..., ::2] = host
            whole = storage.from_host(wide, dtype=dtype)
            step = (*(1,) * (host.ndim - 1), 2)
            return layout.slice(whole, zeros, wide.shape, step=step), whole
        wide = np.full((sizes[0] + 3, *sizes[1:]), _poison(dtype), host.dtype)
        wide[1:-2] = host
        whole = storage.from_host(wide, dtype=dtype)
        return layout.slice(whole, (1, *zeros[1:]), (sizes[0] + 1, *sizes[1:])), whole


def _poison(dtype: DType) -> float | int:
    """What lies between the elements of a view: a reader that steps wrongly will be seen."""
    return math.nan if dtype in FLOATS else 1


Argument = Given | Packed[Any] | tuple[Given, ...] | tuple[int, ...] | str | float | int | None


@dataclass(frozen=True, slots=True)
class Slope:
    """What a VJP is the gradient of: `function` of float64 arrays at `points`, one for each result of the VJP.

    `dy` is the gradient of the function's (first) output. Finite differences of it are a second opinion about the VJP,
    which needs no derivation.
    """

    function: Callable[..., Any]
    points: tuple[Host, ...]
    dy: Host


@dataclass(frozen=True, slots=True)
class Call:
    """One call of a slot's method. Options may hold arrays as well."""

    slot: str
    method: str
    arguments: tuple[Argument, ...]
    options: Mapping[str, object] = field(default_factory=dict)
    slope: Slope | None = None


class Draw:
    """Inputs of one case: the same for the same seed and case, whatever ran before."""

    def __init__(self, seed: int, case: str) -> None:
        self.rng = np.random.default_rng([seed, zlib.crc32(case.encode())])

    def of(self, values: Any, dtype: DType = "float32", view: View = "whole") -> Given:
        """Given values, rounded to `dtype`; a repeated view takes the first row for all."""
        host = rounded(np.asarray(values), dtype)
        if view == "repeated" and host.ndim and host.shape[0]:
            host = np.ascontiguousarray(np.broadcast_to(host[:1], host.shape))
        return Given(host, dtype, view)

    def normal(
        self, *shape: int, dtype: DType = "float32", scale: float = 1.0, shift: float = 0.0, view: View = "whole"
    ) -> Given:
        return self.of(self.rng.standard_normal(shape) * scale + shift, dtype, view)

    def uniform(self, *shape: int, low: float, high: float, dtype: DType = "float32", view: View = "whole") -> Given:
        return self.of(self.rng.uniform(low, high, shape), dtype, view)

    def integers(self, *shape: int, low: int, high: int, dtype: DType = "int32", view: View = "whole") -> Given:
        """low <= value < high; any dtype that holds them."""
        return self.of(self.rng.integers(low, high, shape), dtype, view)

    def booleans(self, *shape: int, view: View = "whole") -> Given:
        return self.of(self.rng.integers(0, 2, shape) > 0, "bool", view)


def rounded(values: Host, dtype: DType) -> Host:
    """`values` rounded to nearest in `dtype`, as `host_dtype(dtype)` carries them."""
    with np.errstate(all="ignore"):
        if dtype != "bfloat16":
            return np.array(values, host_dtype(dtype), order="C")
        narrow = np.array(values, np.float32, order="C")
        bits = narrow.view(np.uint32)
        tied = bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))
        kept = (tied & np.uint32(0xFFFF0000)).view(np.float32)
        return np.array(np.where(np.isfinite(narrow), kept, narrow))
