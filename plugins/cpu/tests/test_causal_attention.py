"""Causal attention against float64 formulas and finite differences, on heads wherever they lie in larger arrays."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from turret_cpu.backend import CpuBackend
from turret_cpu.causal_attention import heads_of

X = npt.NDArray[Any]
Draw = np.random.Generator
Slopes = Callable[[Callable[..., X], Sequence[X], X], list[X]]
SIZES = (3, 21, 4, 2, 6)  # batch, tokens, heads, key-value heads, width of a head
TIGHT = 2e-6
FAR = 1e30  # fills what lies around the operands: a kernel that reads it cannot go unnoticed


def wide(x: X) -> X:
    return x.astype(np.float64)


def made(draw: Draw, *shape: int) -> X:
    return draw.standard_normal(shape).astype(np.float32)


def close(got: X, want: X, tolerance: float = TIGHT) -> None:
    assert got.shape == want.shape
    scale = max(float(np.abs(want).max(initial=0.0)), 1e-30)
    assert float(np.abs(wide(got) - want).max(initial=0.0)) <= tolerance * scale


def attention(q: X, k: X, v: X, *, scale: float, offset: int) -> X:
    group = q.shape[2] // k.shape[2]
    k, v = (np.repeat(x, group, axis=2) for x in (k, v))
    scores = scale * np.einsum("bthd,bshd->bhts", q, k)
    unseen = np.arange(k.shape[1]) > offset + np.arange(q.shape[1])[:, None]
    scores = np.where(unseen, -np.inf, scores)
    e = np.exp(scores - scores.max(-1, keepdims=True))
    return np.asarray(np.einsum("bhts,bshd->bthd", e / e.sum(-1, keepdims=True), v))


@pytest.mark.parametrize(
    ("queries", "keys", "offset", "heads", "kv_heads", "d"),
    [
        (1, 1, 0, 1, 1, 1),
        (7, 7, 0, 2, 1, 5),
        (63, 63, 0, 4, 2, 32),
        (65, 65, 0, 2, 2, 40),
        (130, 130, 0, 1, 1, 16),
        (1, 65, 64, 4, 4, 8),
        (3, 20, 10, 6, 3, 64),
        (5, 9, 30, 2, 1, 4),
        (9, 5, 0, 1, 1, 3),
    ],
)
def test_attention_sees_the_past_only_in_any_size(
    backend: CpuBackend, draw: Draw, queries: int, keys: int, offset: int, heads: int, kv_heads: int, d: int
) -> None:
    slot = backend.capabilities().causal_attention
    assert slot is not None
    q, k, v = made(draw, 2, queries, heads, d), made(draw, 2, keys, kv_heads, d), made(draw, 2, keys, kv_heads, d)
    out, p = slot.attend(q, k, v, scale=0.3, offset=offset)
    close(out, attention(wide(q), wide(k), wide(v), scale=0.3, offset=offset))
    close(p.sum(-1), np.ones((2, heads, queries)))
    unseen = np.arange(keys) > offset + np.arange(queries)[:, None]
    assert not p[:, :, unseen].any()


@pytest.mark.parametrize(
    ("queries", "keys", "offset", "heads", "kv_heads", "d"),
    [(7, 7, 0, 2, 1, 5), (2, 6, 3, 4, 2, 2), (19, 19, 0, 1, 1, 3)],
)
def test_gradients_of_attention_agree_with_finite_differences(
    backend: CpuBackend,
    draw: Draw,
    slopes: Slopes,
    queries: int,
    keys: int,
    offset: int,
    heads: int,
    kv_heads: int,
    d: int,
) -> None:
    slot = backend.capabilities().causal_attention
    assert slot is not None
    q, k, v = made(draw, 1, queries, heads, d), made(draw, 1, keys, kv_heads, d), made(draw, 1, keys, kv_heads, d)
    dy = made(draw, 1, queries, heads, d)
    _, p = slot.attend(q, k, v, scale=0.7, offset=offset)
    want = slopes(lambda *x: attention(*x, scale=0.7, offset=offset), [wide(q), wide(k), wide(v)], wide(dy))
    for g, w in zip(slot.attend_vjp(dy, q, k, v, p, scale=0.7), want, strict=True):
        close(g, w, 1e-5)


@pytest.mark.parametrize(("length", "heads", "kv_heads", "d"), [(130, 4, 2, 32), (65, 2, 2, 40), (300, 1, 1, 16)])
def test_gradients_of_long_attention_follow_the_formula(
    backend: CpuBackend, draw: Draw, length: int, heads: int, kv_heads: int, d: int
) -> None:
    slot = backend.capabilities().causal_attention
    assert slot is not None
    q, dy = made(draw, 2, length, heads, d), made(draw, 2, length, heads, d)
    k, v = made(draw, 2, length, kv_heads, d), made(draw, 2, length, kv_heads, d)
    _, p = slot.attend(q, k, v, scale=0.2, offset=0)
    group = heads // kv_heads
    kk, vv, pp = np.repeat(wide(k), group, 2), np.repeat(wide(v), group, 2), wide(p)
    dp = np.einsum("bthd,bshd->bhts", wide(dy), vv)
    ds = 0.2 * pp * (dp - (pp * dp).sum(-1, keepdims=True))
    dq, dk, dv = slot.attend_vjp(dy, q, k, v, p, scale=0.2)
    folded = (2, length, kv_heads, group, d)
    close(dq, np.einsum("bhts,bshd->bthd", ds, kk), 1e-5)
    close(dk, np.einsum("bhts,bthd->bshd", ds, wide(q)).reshape(folded).sum(3), 1e-5)
    close(dv, np.einsum("bhts,bthd->bshd", pp, wide(dy)).reshape(folded).sum(3), 1e-5)


def joint(draw: Draw) -> tuple[X, X, X]:
    """q, k and v as pieces of one projection."""
    b, t, h, kv, d = SIZES
    whole = made(draw, b, t, (h + 2 * kv) * d)
    q, k, v = np.split(whole, [h * d, (h + kv) * d], axis=2)
    return q.reshape(b, t, h, d), k.reshape(b, t, kv, d), v.reshape(b, t, kv, d)


def cached(draw: Draw) -> tuple[X, X, X]:
    """k and v as the filled part of a longer cache."""
    b, t, h, kv, d = SIZES
    caches = np.full((2, b, t + 9, kv, d), FAR, np.float32)
    caches[:, :, :t] = made(draw, 2, b, t, kv, d)
    return made(draw, b, t, h, d), caches[0, :, :t], caches[1, :, :t]


def broadcast(draw: Draw) -> tuple[X, X, X]:
    """One sequence of keys for every row of the batch, one query for every position."""
    b, t, h, kv, d = SIZES
    k, v = made(draw, 2, 1, t, kv, d)
    q = made(draw, b, 1, h, d)
    return np.broadcast_to(q, (b, t, h, d)), np.broadcast_to(k, (b, t, kv, d)), np.broadcast_to(v, (b, t, kv, d))


def every_other(draw: Draw) -> tuple[X, X, X]:
    """Tokens backwards, tokens with gaps, rows backwards."""
    b, t, h, kv, d = SIZES
    gaps = np.full((b, 2 * t, kv, d), FAR, np.float32)
    gaps[:, ::2] = made(draw, b, t, kv, d)
    return made(draw, b, t, h, d)[:, ::-1], gaps[:, ::2], made(draw, b, t, kv, d)[::-1]


def scattered(draw: Draw) -> tuple[X, X, X]:
    """Heads that do not lie together: head-major storage, heads with gaps, elements with gaps."""
    b, t, h, kv, d = SIZES
    q = made(draw, b, h, t, d).transpose(0, 2, 1, 3)
    return q, made(draw, b, t, 2 * kv, d)[:, :, ::2], made(draw, b, t, kv, 2 * d)[..., ::2]


def sealed(draw: Draw) -> tuple[X, X, X]:
    """Memory that may not be written."""
    arrays = joint(draw)
    for x in arrays:
        x.flags.writeable = False
    return arrays


def crooked(draw: Draw) -> tuple[X, X, X]:
    """Memory that starts between two float32."""

    def moved(x: X) -> X:
        raw = np.zeros(x.nbytes + 1, np.uint8)
        view = raw[1:].view(np.float32).reshape(x.shape)
        view[...] = x
        return view

    q, k, v = joint(draw)
    return moved(q), moved(k), moved(v)


MAKERS = [joint, cached, broadcast, every_other, scattered, sealed, crooked]


def oracle(q: X, k: X, v: X, dy: X, scale: float) -> tuple[X, X, tuple[X, X, X]]:
    """out, probabilities and gradients in float64, from the definition of softmax attention and its derivative."""
    (b, t, h, d), (_, s, kv, _) = q.shape, k.shape
    q, k, v, dy = (x.astype(np.float64) for x in (q, k, v, dy))
    k, v = (np.repeat(x, h // kv, axis=2) for x in (k, v))
    scores = scale * np.einsum("bthd,bshd->bhts", q, k)
    scores[:, :, np.arange(s) > np.arange(t)[:, None]] = -np.inf
    e = np.exp(scores - scores.max(-1, keepdims=True))
    p = e / e.sum(-1, keepdims=True)
    dp = np.einsum("bthd,bshd->bhts", dy, v)
    ds = scale * p * (dp - (p * dp).sum(-1, keepdims=True))
    folded = (b, s, kv, h // kv, d)
    dk = np.einsum("bhts,bthd->bshd", ds, q).reshape(folded).sum(3)
    dv = np.einsum("bhts,bthd->bshd", p, dy).reshape(folded).sum(3)
    return np.einsum("bhts,bshd->bthd", p, v), p, (np.einsum("bhts,bshd->bthd", ds, k), dk, dv)


@pytest.mark.parametrize("make", MAKERS, ids=lambda make: make.__name__)
def test_attention_takes_heads_wherever_they_lie(
    backend: CpuBackend, draw: Draw, make: Callable[[Draw], tuple[X, X, X]]
) -> None:
    slot = backend.capabilities().causal_attention
    assert slot is not None
    q, k, v = make(draw)
    before = [x.copy() for x in (q, k, v)]
    dy = made(draw, *q.shape)
    out, p = slot.attend(q, k, v, scale=0.4, offset=0)
    gradients = slot.attend_vjp(dy, q, k, v, p, scale=0.4)
    want_out, want_p, want_gradients = oracle(q, k, v, dy, 0.4)
    for got, want in zip((out, p, *gradients), (want_out, want_p, *want_gradients), strict=True):
        close(got, want, 1e-5)
        assert got.flags.carray
    assert all(np.array_equal(x, was) for x, was in zip((q, k, v), before, strict=True))


@pytest.mark.parametrize("make", MAKERS, ids=lambda make: make.__name__)
def test_where_heads_lie_does_not_change_a_bit(
    backend: CpuBackend, draw: Draw, make: Callable[[Draw], tuple[X, X, X]]
) -> None:
    slot = backend.capabilities().causal_attention
    assert slot is not None
    views = make(draw)
    copies = [np.array(x, order="C") for x in views]
    dy = made(draw, *views[0].shape)
    results = []
    for q, k, v in (views, copies):
        out, p = slot.attend(q, k, v, scale=0.4, offset=3)
        results.append((out, p, *slot.attend_vjp(dy, q, k, v, p, scale=0.4)))
    for seen, copied in zip(*results, strict=True):
        assert np.array_equal(seen, copied)


def test_one_new_token_attends_over_a_cache_with_room_left(backend: CpuBackend, draw: Draw) -> None:
    slot = backend.capabilities().causal_attention
    assert slot is not None
    _, k, v = cached(draw)
    (b, t, h, kv, d), q = SIZES, made(draw, SIZES[0], 1, SIZES[2], SIZES[4])
    out, p = slot.attend(q, k, v, scale=0.4, offset=t - 1)
    keys, values = (np.repeat(x.astype(np.float64), h // kv, axis=2) for x in (k, v))
    e = np.exp(0.4 * np.einsum("bthd,bshd->bhts", q.astype(np.float64), keys))
    want = e / e.sum(-1, keepdims=True)
    assert p.shape == (b, h, 1, t)
    close(p, want)
    close(out, np.einsum("bhts,bshd->bthd", want, values))
    assert out.shape == (b, 1, h, d)


def test_pieces_of_joint_projections_and_caches_are_not_copied(draw: Draw) -> None:
    for make in (joint, cached, broadcast, every_other, sealed):
        assert all(heads_of(x) is x for x in make(draw)), make.__name__
    for make in (scattered, crooked):
        assert not any(heads_of(x) is x for x in make(draw)), make.__name__
