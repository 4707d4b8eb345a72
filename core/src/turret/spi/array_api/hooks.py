"""Where a library's own function is needed, or better than what the standard can say."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

from ..required import Memory


@dataclass(frozen=True, slots=True, kw_only=True)
class Hooks:
    """None means: composed from the standard, right but slower.

    quiet: a context entered around every call, for a library that warns where the contract asks for infinities and
    NaN: NumPy passes `lambda: numpy.errstate(all="ignore")`. to_host: an array as something `numpy.array` can copy.
    synchronize: waits for the arrays. memory: device memory. matmul: the product, at the precision wanted. erf, rsqrt:
    as in `Elementwise`. scatter_add_rows, set_rows: (base, ids, rows, donate), as in `Indexing`; a donated base may be
    a view, also one whose elements share memory. Halves are widened to float32 before matmul, erf, rsqrt and
    scatter_add_rows and narrowed after them; set_rows is given every dtype.
    """

    quiet: Callable[[], AbstractContextManager[object]] | None = None
    to_host: Callable[[Any], Any] | None = None
    synchronize: Callable[..., object] | None = None
    memory: Callable[[], Memory | None] | None = None
    matmul: Callable[[Any, Any], Any] | None = None
    erf: Callable[[Any], Any] | None = None
    rsqrt: Callable[[Any], Any] | None = None
    scatter_add_rows: Callable[[Any, Any, Any, bool], Any] | None = None
    set_rows: Callable[[Any, Any, Any, bool], Any] | None = None
