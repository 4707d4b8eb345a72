"""Wrong masks and heads."""

from __future__ import annotations

from typing import Any

import numpy as np

from turret.spi import Flashed, Host

from .fault import Broken, Tools, edited, fault, new, wide


@fault(
    name="causal-mask-anchored-at-wrong-corner",
    slot="causal_attention",
    url="https://github.com/pytorch/executorch/issues/22426",
    report=(
        "Causal attention through the MLX backend aligned the mask at the bottom right where the caller meant the "
        "top left, so outputs were wrong exactly when query and key lengths differ."
    ),
    summary=(
        "causal_attention.attend uses offset S - T instead of the offset given; equal whenever the caller's offset"
        " is S - T, wrong for other offsets (S longer than offset + T, or S < offset + T)."
    ),
)
def other_corner(good: Any, tools: Tools) -> Broken:
    storage = tools.storage

    def attend(q: Any, k: Any, v: Any, /, *, scale: float, offset: int) -> tuple[Any, Any]:
        anchored = k.shape[1] - q.shape[1]
        out, probabilities = good.attend(q, k, v, scale=scale, offset=max(anchored, 0))
        if anchored >= 0:
            return out, probabilities
        # the first -anchored queries see nothing; the others see what a square mask shows them
        seeing = new(storage, storage.to_host(q)[:, -anchored:], q)
        late, weights = good.attend(seeing, k, v, scale=scale, offset=0)

        def shown(host: Host) -> None:
            host[:, :-anchored] = 0
            host[:, -anchored:] = storage.to_host(late)

        def weighed(host: Host) -> None:
            host[:, :, :-anchored] = 0
            host[:, :, -anchored:] = storage.to_host(weights)

        return edited(storage, out, shown), edited(storage, probabilities, weighed)

    return Broken(good, attend=attend)


@fault(
    name="grouped-heads-tiled-not-repeated",
    slot="causal_attention",
    url="https://github.com/ekzhang/jax-js/pull/180",
    report=(
        "Grouped-query attention tiled the key-value heads instead of repeating them, so query head h used head h "
        "mod K; one-to-one and single-head cases hid it."
    ),
    summary=(
        "causal_attention.attend reads key-value head h % K instead of h // (H / K) for query head h; right for K "
        "== H and K == 1."
    ),
)
def tiled_heads(good: Any, tools: Tools) -> Broken:
    def attend(q: Any, k: Any, v: Any, /, *, scale: float, offset: int) -> Any:
        heads, kv_heads = q.shape[2], k.shape[2]
        if kv_heads in (1, heads):
            return good.attend(q, k, v, scale=scale, offset=offset)
        k, v = (_heads(tools, x, np.arange(heads) % kv_heads) for x in (k, v))
        return good.attend(q, k, v, scale=scale, offset=offset)

    return Broken(good, attend=attend)


@fault(
    name="flash-group-ratio-not-power-of-two",
    slot="flash_attention",
    url="https://github.com/ggml-org/llama.cpp/pull/19115",
    report=(
        "The CUDA kernel padded query heads per block to a power of two and then paired heads with the wrong key-"
        "value head when the group ratio did not divide evenly, e.g. 12 or 3; a single key-value head hid it."
    ),
    summary=(
        "flash_attention.attend with H // K not a power of two and K > 1 uses the next power of two as group size "
        "when it picks the key-value head (clipped to K - 1)."
    ),
)
def padded_group(good: Any, tools: Tools) -> Broken:
    def attend(q: Any, k: Any, v: Any, /, *, scale: float, offset: int) -> Any:
        heads, kv_heads = q.shape[2], k.shape[2]
        group = heads // kv_heads
        padded = 1 << (group - 1).bit_length()
        if padded != group and kv_heads > 1:
            pairing = np.minimum(np.arange(heads) // padded, kv_heads - 1)
            k, v = (_heads(tools, x, pairing) for x in (k, v))
        return good.attend(q, k, v, scale=scale, offset=offset)

    return Broken(good, attend=attend)


def _heads(tools: Tools, x: Any, pairing: Host) -> Any:
    """(B, S, K, d) with one key-value head for each query head: head h is `pairing[h]`."""
    return new(tools.storage, tools.storage.to_host(x)[:, :, pairing], x)


@fault(
    name="flash-dv-misaligned-columns",
    slot="flash_attention",
    kind="vjp",
    url="https://github.com/Dao-AILab/flash-attention/issues/2552",
    report=(
        "The backward kernel reused a column width derived from the key head size for dV, which wrote part of dV "
        "with misaligned column strides for some head sizes while dQ and dK stayed right."
    ),
    summary=(
        "flash_attention.attend_vjp swaps the last d % 32 columns of dv with the columns before them when d > 32 "
        "and d % 32 != 0 (or, for small d, when d % 8 != 0); dq, dk and the output are right."
    ),
)
def misaligned_columns(good: Any, tools: Tools) -> Broken:
    def attend_vjp(
        dy: Any, q: Any, k: Any, v: Any, saved: Flashed[Any], /, *, scale: float, offset: int
    ) -> tuple[Any, Any, Any]:
        dq, dk, dv = good.attend_vjp(dy, q, k, v, saved, scale=scale, offset=offset)
        size = dv.shape[-1]
        odd = size % (32 if size > 32 else 8)

        def swap(host: Host) -> Host:
            parts = np.split(host, [size - 2 * odd, size - odd], axis=-1)
            return np.concatenate([parts[0], parts[2], parts[1]], axis=-1)

        return dq, dk, edited(tools.storage, dv, swap) if odd and size > 8 else dv

    return Broken(good, attend_vjp=attend_vjp)


@fault(
    name="flash-gradient-wrong-for-batches",
    slot="flash_attention",
    kind="vjp",
    url="https://github.com/NVIDIA/TransformerEngine/issues/3216",
    report=(
        "With head size 256 and two or more sequences the backward returned a query gradient several times too "
        "large, while the forward and single sequences were right."
    ),
    summary=(
        "flash_attention.attend_vjp with B > 1 uses batch row 0's row_max and row_sum for all batch rows; B == 1 "
        "and the forward are right."
    ),
)
def first_statistics(good: Any, tools: Tools) -> Broken:
    def first(x: Any) -> Any:
        return edited(tools.storage, x, lambda host: np.broadcast_to(host[:1], host.shape))

    def attend_vjp(
        dy: Any, q: Any, k: Any, v: Any, saved: Flashed[Any], /, *, scale: float, offset: int
    ) -> tuple[Any, Any, Any]:
        if q.shape[0] > 1:
            saved = Flashed(saved.out, first(saved.row_max), first(saved.row_sum))
        dq, dk, dv = good.attend_vjp(dy, q, k, v, saved, scale=scale, offset=offset)
        return dq, dk, dv

    return Broken(good, attend_vjp=attend_vjp)


@fault(
    name="flash-group-division-by-wrong-count",
    slot="flash_attention",
    kind="vjp",
    url="https://github.com/XunhaoLai/native-sparse-attention-triton/issues/27",
    report=(
        "The dK/dV kernel split the head index by the group size where the forward used the head count, so "
        "gradients landed in wrong heads unless both counts were equal."
    ),
    summary=(
        "flash_attention.attend_vjp returns dk and dv of the head pairing h % K while the forward uses h // (H / "
        "K); right when H == K, K == 1 or H == K * K up to a permutation."
    ),
)
def gradient_of_other_heads(good: Any, tools: Tools) -> Broken:
    storage = tools.storage

    def attend_vjp(
        dy: Any, q: Any, k: Any, v: Any, saved: Flashed[Any], /, *, scale: float, offset: int
    ) -> tuple[Any, Any, Any]:
        heads, kv_heads = q.shape[2], k.shape[2]
        gradients = good.attend_vjp(dy, q, k, v, saved, scale=scale, offset=offset)
        if kv_heads in (1, heads):
            return gradients[0], gradients[1], gradients[2]
        each = np.arange(heads)
        spread = [_heads(tools, x, each // (heads // kv_heads)) for x in (k, v)]
        _, dk, dv = good.attend_vjp(dy, q, *spread, saved, scale=scale, offset=offset)

        def gathered(x: Any) -> Any:
            parts = wide(storage, x)
            sums = [parts[:, :, each % kv_heads == head].sum(axis=2) for head in range(kv_heads)]
            return new(storage, np.stack(sums, axis=2), x)

        return gradients[0], gathered(dk), gathered(dv)

    return Broken(good, attend_vjp=attend_vjp)


FAULTS = (
    other_corner,
    tiled_heads,
    padded_group,
    misaligned_columns,
    first_statistics,
    gradient_of_other_heads,
)
