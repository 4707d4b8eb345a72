"""What every slot of this backend does with an array before a kernel may see it."""

from __future__ import annotations

from collections import Counter
from typing import Any, Generic, TypeVar

import numpy as np
import numpy.typing as npt

X = npt.NDArray[Any]
D = TypeVar("D")

_FLOAT32 = np.dtype(np.float32)


def dense(x: X) -> X:
    """x itself where it is C-ordered, aligned and writable, as kernels need; else such a copy."""
    return x if x.flags.carray else np.array(x, order="C")


def kernel_ready(x: X) -> bool:
    """Whether kernels take this dtype and there is anything to do."""
    return x.dtype == _FLOAT32 and x.size > 0


class Rest(Generic[D]):
    """The composed slot that takes what the native one does not, with a count."""

    def __init__(self, slot: str, derived: D, calls: Counter[str]) -> None:
        self._slot, self._derived, self._calls = slot, derived, calls

    def __call__(self) -> D:
        self._calls[self._slot] += 1
        return self._derived
