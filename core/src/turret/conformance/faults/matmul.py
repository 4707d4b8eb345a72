"""Wrong matrix products."""

from __future__ import annotations

from typing import Any

import numpy as np

from turret.spi import Host

from .fault import Broken, Tools, edited, fault, new, wide

TILE = 32


@fault(
    name="matmul-overreads-last-k-tile",
    slot="matmul",
    url="https://github.com/pytorch/pytorch/issues/193487",
    report=(
        "MPS matrix products over-read the end of a long reduction axis because the last tile was not clipped, so "
        "whatever lay behind the operands was summed in, differently with the allocator's state."
    ),
    summary=(
        "matmul.matmul with a contraction size above 32 that is no multiple of 32 zero-extends a to the next "
        "multiple of 32 but fills b's extra rows from the previous call's operand and a's extra columns with ones,"
        " so only the tail tile adds garbage."
    ),
)
def overreading(good: Any, tools: Tools) -> Broken:
    storage = tools.storage
    behind: list[Host] = []

    def matmul(a: Any, b: Any, /, *, transpose_a: bool = False, transpose_b: bool = False) -> Any:
        result = good.matmul(a, b, transpose_a=transpose_a, transpose_b=transpose_b)
        contraction = b.shape[-1] if transpose_b else b.shape[-2]
        over = -contraction % TILE
        if contraction > TILE and over and behind:
            garbage = np.resize(behind[0], (over, result.shape[-1])).sum(axis=0)
            result = edited(storage, result, lambda host: host + garbage)
        behind[:] = [wide(storage, b)]
        return result

    return Broken(good, matmul=matmul)


@fault(
    name="matmul-skips-single-column-transposed",
    slot="matmul",
    url="https://github.com/modular/modular/issues/6932",
    report=(
        "A GPU matmul with transpose_b set and one output column never wrote its output, so the caller read what "
        "the buffer held before; the untransposed call was right."
    ),
    summary=(
        "matmul.matmul with transpose_b=True whose result has last axis 1 returns the stale contents of the last "
        "result of that shape (zeros at first) instead of the product; every other call is right."
    ),
)
def never_written(good: Any, tools: Tools) -> Broken:
    storage = tools.storage
    left: dict[tuple[int, ...], Host] = {}

    def matmul(a: Any, b: Any, /, *, transpose_a: bool = False, transpose_b: bool = False) -> Any:
        result = good.matmul(a, b, transpose_a=transpose_a, transpose_b=transpose_b)
        shape = tuple(result.shape)
        if transpose_b and shape[-1] == 1:
            return new(storage, left.get(shape, np.zeros(shape)), result)
        left[shape] = wide(storage, result)
        return result

    return Broken(good, matmul=matmul)


FAULTS = (overreading, never_written)
