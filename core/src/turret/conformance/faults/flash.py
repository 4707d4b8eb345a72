"""Wrong tiles: attention that sees keys a piece at a time and puts the pieces together wrongly."""

from __future__ import annotations

from typing import Any

import numpy as np

from turret.spi import HALVES, Flashed, Host

from .fault import Broken, Tools, edited, fault, new, wide

TILE = 64  # keys


@fault(
    name="flash-later-maximum-not-rescaled",
    slot="flash_attention",
    url="https://github.com/meta-pytorch/MSLK/pull/242",
    report=(
        "A kernel that rescales only where the running maximum grows enough took its probabilities from the new "
        "maximum but left sum and output at the old one, so the softmax was normalized wrongly and images got worse."
    ),
    summary=(
        "flash_attention.attend leaves row_sum and the output so far as they are when a later tile of 64 keys has a "
        "greater maximum; right for up to 64 keys and for rows whose greatest score is in the first tile."
    ),
)
def not_rescaled(good: Any, tools: Tools) -> Broken:
    storage = tools.storage

    def attend(q: Any, k: Any, v: Any, /, *, scale: float, offset: int) -> Flashed[Any]:
        right: Flashed[Any] = good.attend(q, k, v, scale=scale, offset=offset)
        if k.shape[1] <= TILE:
            return right
        scores, values = _scores(storage, q, k, scale, offset), _spread(wide(storage, v), q.shape[2])
        rows = (*scores.shape[:-1], 1)
        maximum, total, out = np.full(rows, -np.inf), np.zeros(rows), np.zeros((*rows[:-1], v.shape[3]))
        for start in range(0, k.shape[1], TILE):
            tile = scores[..., start : start + TILE]
            maximum = np.maximum(maximum, tile.max(axis=-1, keepdims=True))
            weights = np.exp(tile - maximum)
            total = total + weights.sum(axis=-1, keepdims=True)
            out = out + weights @ values[:, :, start : start + TILE]
        return Flashed(
            new(storage, (out / total).swapaxes(1, 2), q), right.row_max, new(storage, total[..., 0], right.row_sum)
        )

    return Broken(good, attend=attend)


@fault(
    name="flash-unseen-tile-gives-nan",
    slot="flash_attention",
    url="https://github.com/ikawrakow/ik_llama.cpp/issues/2344",
    report=(
        "Rows for which the mask hid a whole block of keys came out as NaN when that block was the first: minus "
        "infinity less a maximum of minus infinity. The NaN went on into the cache, and decoding stopped."
    ),
    summary=(
        "flash_attention.attend gives NaN as output and row_sum of a row that sees none of the keys of some tile of "
        "64; right where all keys are in tiles that the row sees into."
    ),
)
def unseen_tile(good: Any, tools: Tools) -> Broken:
    def attend(q: Any, k: Any, v: Any, /, *, scale: float, offset: int) -> Flashed[Any]:
        right: Flashed[Any] = good.attend(q, k, v, scale=scale, offset=offset)
        last_tile = (k.shape[1] - 1) // TILE * TILE
        lost = offset + np.arange(q.shape[1]) < last_tile

        def spoil(host: Host) -> None:
            host[:, lost] = np.nan

        def spoil_sums(host: Host) -> None:
            host[..., lost] = np.nan

        if not lost.any():
            return right
        storage = tools.storage
        return right._replace(out=edited(storage, right.out, spoil), row_sum=edited(storage, right.row_sum, spoil_sums))

    return Broken(good, attend=attend)


@fault(
    name="flash-row-sum-in-half",
    slot="flash_attention",
    url="https://github.com/sonos/tract/pull/2586",
    report=(
        "The softmax of attention added its exponentials up in half precision: from some length on further terms "
        "were rounded away, and the weights of a row of 4096 added up to 1.29."
    ),
    summary="flash_attention.attend of halves adds row_sum up in float16, and divides the output by it.",
)
def half_sums(good: Any, tools: Tools) -> Broken:
    storage = tools.storage

    def attend(q: Any, k: Any, v: Any, /, *, scale: float, offset: int) -> Flashed[Any]:
        right: Flashed[Any] = good.attend(q, k, v, scale=scale, offset=offset)
        if storage.dtype_of(q) not in HALVES or not q.size or not k.size:
            return right
        scores = _scores(storage, q, k, scale, offset)
        terms = np.exp(scores - scores.max(axis=-1, keepdims=True)).astype(np.float16)
        total = np.zeros(terms.shape[:-1], np.float16)
        for key in range(terms.shape[-1]):
            total = total + terms[..., key]
        ratio = (wide(storage, right.row_sum) / total).swapaxes(1, 2)[..., None]
        return right._replace(
            out=new(storage, wide(storage, right.out) * ratio, q), row_sum=new(storage, total, right.row_sum)
        )

    return Broken(good, attend=attend)


@fault(
    name="flash-backward-ignores-offset",
    slot="flash_attention",
    kind="vjp",
    url="https://github.com/gittensor-ai-lab/sparkinfer/issues/3",
    report=(
        "The causal bound took query and key positions as if both began at 0, so queries behind a cached prefix "
        "missed their latest keys; with equal lengths nothing was to be seen."
    ),
    summary="flash_attention.attend_vjp masks as if the offset were 0; right for offset 0.",
)
def offset_ignored(good: Any, tools: Tools) -> Broken:
    def attend_vjp(
        dy: Any, q: Any, k: Any, v: Any, saved: Flashed[Any], /, *, scale: float, offset: int
    ) -> tuple[Any, Any, Any]:
        dq, dk, dv = good.attend_vjp(dy, q, k, v, saved, scale=scale, offset=0)
        return dq, dk, dv

    return Broken(good, attend_vjp=attend_vjp)


@fault(
    name="flash-gradient-of-one-head-per-group",
    slot="flash_attention",
    kind="vjp",
    url="https://github.com/marin-community/levanter/pull/449",
    report=(
        "The backward pass of grouped-query attention did not sum dK and dV over the query heads that share a "
        "key-value head; only models without groups had been tested."
    ),
    summary=(
        "flash_attention.attend_vjp takes dk and dv from the first query head of each group alone; dq is right, and "
        "all is right for H == K."
    ),
)
def lone_head(good: Any, tools: Tools) -> Broken:
    def attend_vjp(
        dy: Any, q: Any, k: Any, v: Any, saved: Flashed[Any], /, *, scale: float, offset: int
    ) -> tuple[Any, Any, Any]:
        group = q.shape[2] // k.shape[2]

        def firsts(host: Host) -> None:
            host[:, :, np.arange(host.shape[2]) % group > 0] = 0

        dq, _, _ = good.attend_vjp(dy, q, k, v, saved, scale=scale, offset=offset)
        lone = edited(tools.storage, dy, firsts)
        _, dk, dv = good.attend_vjp(lone, q, k, v, saved, scale=scale, offset=offset)
        return dq, dk, dv

    return Broken(good, attend_vjp=attend_vjp)


def _spread(x: Host, heads: int) -> Host:
    """(B, S, K, d) as (B, H, S, d), one key-value head for each query head."""
    return np.repeat(x, heads // x.shape[2], axis=2).swapaxes(1, 2)


def _scores(storage: Any, q: Any, k: Any, scale: float, offset: int) -> Host:
    """(B, H, T, S) in float64; minus infinity where nothing is seen."""
    keys = _spread(wide(storage, k), q.shape[2])
    scores = wide(storage, q).swapaxes(1, 2) @ keys.swapaxes(-1, -2) * scale
    seen = np.arange(k.shape[1]) <= offset + np.arange(q.shape[1])[:, None]
    return np.where(seen, scores, -np.inf)


FAULTS = (
    not_rescaled,
    unseen_tile,
    half_sums,
    offset_ignored,
    lone_head,
)
