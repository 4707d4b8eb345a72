"""Wrong matrix products."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from turret.spi import Host

from .fault import Broken, Tools, edited, fault, new, wide

TILE = 32
BATCH = 4


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


@fault(
    name="claims-float32-multiplies-narrow",
    slot="matmul",
    url="https://github.com/jax-ml/jax/issues/14157",
    report=(
        "Asking for full precision had no effect on A100: products of float32 matrices stayed at TF32 accuracy "
        "under every precision setting."
    ),
    summary=(
        "matmul.accumulation answers 'float32' but matmul rounds both operands to 10 mantissa bits first; small "
        "integers hide it."
    ),
)
def narrow_product(good: Any, tools: Tools) -> Broken:
    storage = tools.storage

    def narrowed(host: Host) -> Host:
        bits = host.view(np.uint32).astype(np.uint64)
        kept = ((bits + 0xFFF + (bits >> 13 & 1)) & 0xFFFFE000).astype(np.uint32).view(np.float32)
        return np.where(np.isfinite(host), kept, host)

    def matmul(a: Any, b: Any, /, *, transpose_a: bool = False, transpose_b: bool = False) -> Any:
        if storage.dtype_of(a) == "float32":
            a, b = edited(storage, a, narrowed), edited(storage, b, narrowed)
        return good.matmul(a, b, transpose_a=transpose_a, transpose_b=transpose_b)

    return Broken(good, matmul=matmul, accumulation=lambda dtype: "float32")


@fault(
    name="empty-contraction-uninitialised",
    slot="matmul",
    url="https://github.com/apache/tvm/issues/19578",
    report=(
        "A product over an axis of size 0 left its output buffer unset and returned arbitrary memory where zeros "
        "are due."
    ),
    summary=(
        "matmul.matmul with contraction size 0 returns 1e30 everywhere (stand-in for stale memory) instead of zeros."
    ),
)
def empty_contraction(good: Any, tools: Tools) -> Broken:
    def matmul(a: Any, b: Any, /, *, transpose_a: bool = False, transpose_b: bool = False) -> Any:
        result = good.matmul(a, b, transpose_a=transpose_a, transpose_b=transpose_b)
        if b.shape[-1 if transpose_b else -2]:
            return result
        return edited(tools.storage, result, lambda host: np.full_like(host, 1e30))

    return Broken(good, matmul=matmul)


@fault(
    name="batched-product-wraps-at-limit",
    slot="matmul",
    url="https://github.com/pytorch/pytorch/issues/197636",
    report=(
        "Batched products whose size passes 2^32 elements read the operand from the beginning again, so gradients "
        "in the last batches were those of the first; the forward was right."
    ),
    summary=(
        "matmul.matmul of rank 3 or more with transpose_a or transpose_b set: batch entries from 4 on use the a "
        "operand of entry (index - 4); the untransposed (forward) product is right."
    ),
)
def wrapping_operand(good: Any, tools: Tools) -> Broken:
    def wrap(host: Host) -> Host:
        entries = host.reshape(-1, *host.shape[-2:])
        count = np.arange(len(entries))
        return entries[np.where(count < BATCH, count, count - BATCH)].reshape(host.shape)

    def matmul(a: Any, b: Any, /, *, transpose_a: bool = False, transpose_b: bool = False) -> Any:
        if len(a.shape) > 2 and (transpose_a or transpose_b) and math.prod(a.shape[:-2]) > BATCH:
            a = edited(tools.storage, a, wrap)
        return good.matmul(a, b, transpose_a=transpose_a, transpose_b=transpose_b)

    return Broken(good, matmul=matmul)


@fault(
    name="skinny-products-wrong",
    slot="matmul",
    url="https://github.com/ggml-org/llama.cpp/issues/25906",
    report=(
        "On one Vulkan driver matrix products were wrong only when the second operand had few columns (1 to about "
        "8), i.e. in single-token decoding, and right for more."
    ),
    summary=(
        "matmul.matmul with 1 to 8 result columns and more than 64 contraction elements leaves the last 32 "
        "contraction elements out; 9 columns or more are right."
    ),
)
def skinny_product(good: Any, tools: Tools) -> Broken:
    def cut(x: Any, axis: int) -> Any:
        stop = list(x.shape)
        stop[axis] -= TILE
        return tools.layout.slice(x, (0,) * len(stop), tuple(stop))

    def matmul(a: Any, b: Any, /, *, transpose_a: bool = False, transpose_b: bool = False) -> Any:
        columns, contraction = (b.shape[-2], b.shape[-1]) if transpose_b else (b.shape[-1], b.shape[-2])
        if 1 <= columns <= 8 and contraction > 2 * TILE:
            a, b = cut(a, -2 if transpose_a else -1), cut(b, -1 if transpose_b else -2)
        return good.matmul(a, b, transpose_a=transpose_a, transpose_b=transpose_b)

    return Broken(good, matmul=matmul)


FAULTS = (
    overreading,
    never_written,
    narrow_product,
    empty_contraction,
    wrapping_operand,
    skinny_product,
)
