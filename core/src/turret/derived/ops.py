"""The vocabulary of the derived slots: the required functions under one name each."""

from __future__ import annotations

import math
from typing import Generic

from turret.spi import HALVES, A, DType, Required


class Ops(Generic[A]):
    """The six required slots side by side, and the few phrases that most compositions say."""

    def __init__(self, required: Required[A]) -> None:
        storage, elementwise = required.storage, required.elementwise
        self.from_host, self.full, self.arange = storage.from_host, storage.full, storage.arange
        self.cast, self.dtype_of = storage.cast, storage.dtype_of
        self.add, self.subtract = elementwise.add, elementwise.subtract
        self.multiply, self.divide = elementwise.multiply, elementwise.divide
        self.maximum, self.minimum, self.negative = elementwise.maximum, elementwise.minimum, elementwise.negative
        self.exp, self.log, self.erf = elementwise.exp, elementwise.log, elementwise.erf
        self.sqrt, self.rsqrt = elementwise.sqrt, elementwise.rsqrt
        self.isfinite, self.logical_and, self.where = elementwise.isfinite, elementwise.logical_and, elementwise.where
        self.equal, self.less, self.less_equal = elementwise.equal, elementwise.less, elementwise.less_equal
        self.sum, self.mean, self.max = required.reduction.sum, required.reduction.mean, required.reduction.max
        self.reshape, self.transpose = required.layout.reshape, required.layout.transpose
        self.slice, self.concatenate, self.pad = required.layout.slice, required.layout.concatenate, required.layout.pad
        self.gather_rows, self.gather_last = required.indexing.gather_rows, required.indexing.gather_last
        self.set_rows = required.indexing.set_rows
        self.matmul = required.matmul.matmul

    def wide(self, x: A) -> A:
        """Halves in float32, anything else as it is: the dtype to compute in."""
        return self.cast(x, "float32") if self.dtype_of(x) in HALVES else x

    def like(self, x: A, model: A) -> A:
        """`x` in the dtype of `model`."""
        dtype: DType = self.dtype_of(model)
        return x if self.dtype_of(x) == dtype else self.cast(x, dtype)

    def magnitude(self, x: A) -> A:
        return self.maximum(x, self.negative(x))

    def flat(self, x: A) -> A:
        return self.reshape(x, (math.prod(x.shape),))

    def rows(self, x: A) -> A:
        """(..., D) as (N, D)."""
        return self.reshape(x, (math.prod(x.shape[:-1]), x.shape[-1]))

    def sum_rows(self, x: A) -> A:
        """(..., D) added up to (D,)."""
        return self.sum(self.rows(x), axis=0)

    def cut(self, x: A, axis: int, start: int, stop: int) -> A:
        """`x` from `start` to `stop` along one axis."""
        low, high = [0] * len(x.shape), list(x.shape)
        low[axis], high[axis] = start, stop
        return self.slice(x, tuple(low), tuple(high))
