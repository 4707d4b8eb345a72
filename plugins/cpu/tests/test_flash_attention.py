"""Flash attention against float64 formulas and finite differences, over the edges of its blocks and tiles."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from turret.spi import FlashAttention
from turret_cpu import flash_attention
from turret_cpu.backend import CpuBackend
from turret_cpu.kernels import flash
from turret_cpu.threads import POOL

X = npt.NDArray[Any]
Draw = np.random.Generator
Slopes = Callable[[Callable[..., X], Sequence[X], X], list[X]]
Results = tuple[X, ...]
FAR = 1e30  # fills what lies around the operands
BLOCK, TILE = flash.QUERIES, flash_attention.TILE


@pytest.fixture(scope="module")
def slot(backend: CpuBackend) -> FlashAttention[Any]:
    found = backend.capabilities().flash_attention
    assert found is not None
    return found


def made(draw: Draw, *shape: int) -> X:
    return draw.standard_normal(shape).astype(np.float32)


def operands(draw: Draw, sizes: tuple[int, int, int, int, int, int]) -> tuple[X, X, X, X]:
    """q, k, v and dy of sizes (B, T, S, H, K, d)."""
    b, t, s, h, kv, d = sizes
    return made(draw, b, t, h, d), made(draw, b, s, kv, d), made(draw, b, s, kv, d), made(draw, b, t, h, d)


def run(slot: FlashAttention[Any], q: X, k: X, v: X, dy: X, scale: float, offset: int) -> Results:
    """out, row_max, row_sum, dq, dk, dv."""
    saved = slot.attend(q, k, v, scale=scale, offset=offset)
    return (*saved, *slot.attend_vjp(dy, q, k, v, saved, scale=scale, offset=offset))


def oracle(q: X, k: X, v: X, dy: X, scale: float, offset: int) -> Results:
    """The same in float64, from the definition of softmax attention and its derivative; 0 where nothing is seen."""
    (b, _, h, d), (_, s, kv, _) = q.shape, k.shape
    p, top, total = _weights(q, k, scale, offset)
    q, k, v, dy = (x.astype(np.float64) for x in (q, k, v, dy))
    k, v = (np.repeat(x, h // kv, axis=2) for x in (k, v))
    dp = np.einsum("bthd,bshd->bhts", dy, v)
    ds = scale * p * (dp - (p * dp).sum(-1, keepdims=True))
    folded = (b, s, kv, h // kv, d)
    dk = np.einsum("bhts,bthd->bshd", ds, q).reshape(folded).sum(3)
    dv = np.einsum("bhts,bthd->bshd", p, dy).reshape(folded).sum(3)
    return np.einsum("bhts,bshd->bthd", p, v), top, total, np.einsum("bhts,bshd->bthd", ds, k), dk, dv


def addends(q: X, k: X, v: X, dy: X, scale: float, offset: int) -> list[float]:
    """The largest sum of magnitudes behind each result: gradients are differences, and may be 0 of large numbers."""
    (b, _, h, d), (_, s, kv, _) = q.shape, k.shape
    p, _, total = _weights(q, k, scale, offset)
    q, k, v, dy = (np.abs(x.astype(np.float64)) for x in (q, k, v, dy))
    k, v = (np.repeat(x, h // kv, axis=2) for x in (k, v))
    dp = np.einsum("bthd,bshd->bhts", dy, v)
    ds = abs(scale) * p * (dp + (p * dp).sum(-1, keepdims=True))
    folded = (b, s, kv, h // kv, d)
    sums = (
        np.einsum("bhts,bshd->bthd", p, v),
        abs(scale) * np.einsum("bthd,bshd->bhts", q, k),
        total,
        np.einsum("bhts,bshd->bthd", ds, k),
        np.einsum("bhts,bthd->bshd", ds, q).reshape(folded).sum(3),
        np.einsum("bhts,bthd->bshd", p, dy).reshape(folded).sum(3),
    )
    return [float(x.max(initial=0.0)) for x in sums]


def _weights(q: X, k: X, scale: float, offset: int) -> tuple[X, X, X]:
    """Probabilities (B, H, T, S), and the maximum and sum of each row, in float64."""
    t, (_, s, kv, _) = q.shape[1], k.shape
    keys = np.repeat(k.astype(np.float64), q.shape[2] // kv, axis=2)
    seen = np.arange(s) <= offset + np.arange(t)[:, None]
    scores = np.where(seen, scale * np.einsum("bthd,bshd->bhts", q.astype(np.float64), keys), -np.inf)
    top = scores.max(-1)
    e = np.where(seen, np.exp(scores - np.where(np.isfinite(top), top, 0)[..., None]), 0)
    total = e.sum(-1)
    return e / np.where(total == 0, 1, total)[..., None], top, total


def close(got: X, want: X, tolerance: float) -> None:
    """Within a tolerance relative to the largest element, or to 1 where all are less: gradients are differences."""
    assert got.shape == want.shape
    assert got.dtype == np.float32
    scale = max(float(np.abs(want).max(initial=0.0)), 1.0)
    assert float(np.abs(got.astype(np.float64) - want).max(initial=0.0)) <= tolerance * scale


def all_close(got: Results, want: Results, tolerance: float = 5e-6) -> None:
    for g, w in zip(got, want, strict=True):
        close(g, w, tolerance)


EDGES = [
    ((1, 1, 1, 1, 1, 1), 0),
    ((2, 7, 7, 2, 1, 5), 0),
    ((2, BLOCK - 1, BLOCK - 1, 4, 2, 32), 0),
    ((1, BLOCK, BLOCK, 2, 2, 64), 0),
    ((1, BLOCK + 1, BLOCK + 1, 2, 2, 40), 0),
    ((1, TILE + 1, TILE + 1, 3, 1, 64), 0),
    ((1, 2 * TILE + 50, 2 * TILE + 50, 2, 1, 64), 0),
    ((2, 1, 65, 4, 4, 8), 64),
    ((1, 1, 2 * TILE, 2, 2, 16), 2 * TILE - 1),
    ((1, 50, TILE + 60, 2, 2, 48), TILE + 10),
    ((1, 5, 9, 2, 1, 4), 30),
    ((1, 9, 5, 1, 1, 3), 0),
    ((1, 2 * BLOCK + 7, 20, 6, 3, 16), 0),
    ((1, 20, TILE + 20, 2, 1, 16), 3),
    ((1, 100, 100, 1, 1, 130), 0),
]


@pytest.mark.parametrize(("sizes", "offset"), EDGES, ids=lambda x: str(x).replace(" ", ""))
def test_results_statistics_and_gradients_follow_the_formula_at_every_edge(
    slot: FlashAttention[Any], draw: Draw, sizes: tuple[int, int, int, int, int, int], offset: int
) -> None:
    given_ones = operands(draw, sizes)
    all_close(run(slot, *given_ones, 0.3, offset), oracle(*given_ones, 0.3, offset))


@settings(max_examples=40, deadline=None, derandomize=True)
@given(
    batch=st.integers(1, 2),
    queries=st.integers(1, 2 * BLOCK + 9),
    keys=st.integers(1, TILE + 40),
    kv_heads=st.integers(1, 3),
    group=st.integers(1, 3),
    d=st.integers(1, 40),
    offset=st.integers(0, TILE + 10),
    scale=st.sampled_from([0.3, -0.2, 0.0, 1.0]),
)
def test_results_statistics_and_gradients_follow_the_formula_in_any_size(
    slot: FlashAttention[Any],
    batch: int,
    queries: int,
    keys: int,
    kv_heads: int,
    group: int,
    d: int,
    offset: int,
    scale: float,
) -> None:
    draw = np.random.default_rng([batch, queries, keys, kv_heads, group, d, offset])
    given_ones = operands(draw, (batch, queries, keys, kv_heads * group, kv_heads, d))
    results = run(slot, *given_ones, scale, offset), oracle(*given_ones, scale, offset)
    for got, want, size in zip(*results, addends(*given_ones, scale, offset), strict=True):
        assert got.shape == want.shape
        assert float(np.abs(got.astype(np.float64) - want).max(initial=0.0)) <= 5e-6 * max(size, 1.0)


@pytest.mark.parametrize(("sizes", "offset"), [((1, 7, 7, 2, 1, 5), 0), ((1, 2, 6, 4, 2, 2), 3)])
def test_gradients_agree_with_finite_differences(
    slot: FlashAttention[Any], draw: Draw, slopes: Slopes, sizes: tuple[int, int, int, int, int, int], offset: int
) -> None:
    *inputs, dy = operands(draw, sizes)
    seed = dy.astype(np.float64)
    want = slopes(lambda *x: oracle(*x, seed, 0.7, offset)[0], [x.astype(np.float64) for x in inputs], seed)
    got = run(slot, *inputs, dy, 0.7, offset)[3:]
    for g, w in zip(got, want, strict=True):
        close(g, w, 1e-5)


@pytest.mark.parametrize("direction", [1, -1], ids=["rising", "falling"])
def test_scores_of_hundreds_stay_exact_while_the_maximum_moves_from_tile_to_tile(
    slot: FlashAttention[Any], draw: Draw, direction: int
) -> None:
    size = 3 * TILE
    q, k, v, dy = operands(draw, (1, size, size, 1, 1, 8))
    q[...], k[...] = 1, (direction * np.linspace(-40, 40, size, dtype=np.float32))[None, :, None, None]
    results = run(slot, q, k, v, dy, 1.0, 0)
    want = oracle(q, k, v, dy, 1.0, 0)
    assert np.ptp(want[1]) > (500 if direction == 1 else -1)
    all_close(results, want, 5e-4)


def test_queries_that_see_nothing_give_zero_and_no_nan(slot: FlashAttention[Any], draw: Draw) -> None:
    given_ones = operands(draw, (1, BLOCK + 20, BLOCK + 20, 2, 1, 16))
    blind = BLOCK + 3
    out, _, row_sum, *gradients = run(slot, *given_ones, 0.3, -blind)
    want = oracle(*given_ones, 0.3, -blind)
    assert not out[:, :blind].any()
    assert not row_sum[:, :, :blind].any()
    all_close((out, row_sum, *gradients), (want[0], *want[2:]))


def test_scores_of_minus_infinity_weigh_nothing_though_they_fill_the_first_tile(
    slot: FlashAttention[Any], draw: Draw
) -> None:
    q, k, v, _ = operands(draw, (1, TILE + 30, TILE + 30, 1, 1, 8))
    q[..., 0], k[:, : TILE + 5, :, 0] = 1, -np.inf
    out, _, row_sum = slot.attend(q, k, v, scale=0.3, offset=0)
    want = slot.attend(q[:, TILE + 5 :], k[:, TILE + 5 :], v[:, TILE + 5 :], scale=0.3, offset=0)
    assert not out[:, : TILE + 5].any()
    close(out[:, TILE + 5 :], want.out, 2e-6)
    close(row_sum[:, :, TILE + 5 :], want.row_sum, 2e-6)


def test_nan_of_either_sign_in_a_query_reaches_its_own_row_only(slot: FlashAttention[Any], draw: Draw) -> None:
    q, k, v, _ = operands(draw, (1, 30, 30, 1, 1, 8))
    q[0, 10], q[0, 20] = np.nan, -np.nan
    bad = np.isnan(slot.attend(q, k, v, scale=0.3, offset=0).out).any(axis=(0, 2, 3))
    assert np.flatnonzero(bad).tolist() == [10, 20]


@settings(max_examples=15, deadline=None, derandomize=True)
@given(cut=st.integers(1, 2 * TILE - 1), kv_heads=st.sampled_from([1, 2]))
def test_a_prompt_in_two_pieces_gives_the_same_bits(slot: FlashAttention[Any], cut: int, kv_heads: int) -> None:
    q, k, v, _ = operands(np.random.default_rng(cut), (1, 2 * TILE, 2 * TILE, 2, kv_heads, 24))
    whole = slot.attend(q, k, v, scale=0.2, offset=0)
    first = slot.attend(q[:, :cut], k[:, :cut], v[:, :cut], scale=0.2, offset=0)
    second = slot.attend(q[:, cut:], k, v, scale=0.2, offset=cut)
    for axis, all_of_it, *pieces in zip((1, 2, 2), whole, first, second, strict=True):
        assert np.array_equal(all_of_it, np.concatenate(pieces, axis=axis))


@pytest.mark.parametrize("heads", [1, 5])
def test_bits_do_not_depend_on_the_number_of_threads(
    slot: FlashAttention[Any], draw: Draw, monkeypatch: pytest.MonkeyPatch, heads: int
) -> None:
    given_ones = operands(draw, (2, 500, 500, heads, 1, 32))
    found = []
    for shares in (1, 2, 3, 7):
        monkeypatch.setattr(POOL, "shares", lambda work, shares=shares: shares)
        monkeypatch.setattr(POOL, "scratch", lambda size, shares=shares: np.full((shares, size), FAR, np.float32))
        found.append(run(slot, *given_ones, 0.3, 0))
    for other in found[1:]:
        assert all(np.array_equal(a, b) for a, b in zip(found[0], other, strict=True))


def test_memory_beside_the_results_grows_no_faster_than_the_tokens(
    slot: FlashAttention[Any], draw: Draw, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []
    kept = POOL.scratch

    def scratch(size: int) -> X:
        asked.append(size)
        return kept(size)

    monkeypatch.setattr(POOL, "scratch", scratch)
    for tokens in (600, 1200):
        run(slot, *operands(draw, (1, tokens, tokens, 1, 1, 16)), 0.3, 0)
    assert asked[2] <= 2 * asked[0]
    assert asked[3] <= asked[1] + 600  # a dot for each query


SIZES = (3, 21, 4, 2, 6)  # batch, tokens, heads, key-value heads, width of a head


def joint(draw: Draw) -> tuple[X, X, X]:
    """q, k and v as pieces of one projection."""
    b, t, h, kv, d = SIZES
    q, k, v = np.split(made(draw, b, t, (h + 2 * kv) * d), [h * d, (h + kv) * d], axis=2)
    return q.reshape(b, t, h, d), k.reshape(b, t, kv, d), v.reshape(b, t, kv, d)


def cached(draw: Draw) -> tuple[X, X, X]:
    """k and v as the filled part of a longer cache."""
    b, t, h, kv, d = SIZES
    caches = np.full((2, b, t + 9, kv, d), FAR, np.float32)
    caches[:, :, :t] = made(draw, 2, b, t, kv, d)
    return made(draw, b, t, h, d), caches[0, :, :t], caches[1, :, :t]


def spread(draw: Draw) -> tuple[X, X, X]:
    """One query for every position, tokens backwards, heads that do not lie together."""
    b, t, h, kv, d = SIZES
    q = np.broadcast_to(made(draw, b, 1, h, d), (b, t, h, d))
    return q, made(draw, b, t, kv, d)[:, ::-1], made(draw, b, kv, t, d).transpose(0, 2, 1, 3)


def sealed(draw: Draw) -> tuple[X, X, X]:
    """Memory that may not be written and starts between two float32."""
    arrays = []
    for x in joint(draw):
        raw = np.zeros(x.nbytes + 1, np.uint8)
        view = raw[1:].view(np.float32).reshape(x.shape)
        view[...] = x
        view.flags.writeable = False
        arrays.append(view)
    return arrays[0], arrays[1], arrays[2]


@pytest.mark.parametrize("make", [joint, cached, spread, sealed], ids=lambda make: make.__name__)
def test_where_heads_lie_does_not_change_a_bit(
    slot: FlashAttention[Any], draw: Draw, make: Callable[[Draw], tuple[X, X, X]]
) -> None:
    views = make(draw)
    copies = [np.array(x, order="C") for x in views]
    dy = made(draw, *views[0].shape[::-1]).T
    seen, copied = run(slot, *views, dy, 0.4, 0), run(slot, *copies, np.array(dy, order="C"), 0.4, 0)
    all_close(seen, oracle(*copies, dy, 0.4, 0))
    for one, other in zip(seen, copied, strict=True):
        assert np.array_equal(one, other)
        assert one.flags.carray
    assert all(np.array_equal(x, was) for x, was in zip(views, copies, strict=True))


def test_saved_statistics_may_be_views(slot: FlashAttention[Any], draw: Draw) -> None:
    q, k, v, dy = operands(draw, (2, 40, 40, 2, 1, 8))
    saved = slot.attend(q, k, v, scale=0.3, offset=0)
    views = type(saved)(*(np.stack([x, x])[::-1].swapaxes(0, 1)[:, 0] for x in saved))
    plain = slot.attend_vjp(dy, q, k, v, saved, scale=0.3, offset=0)
    for one, other in zip(plain, slot.attend_vjp(dy, q, k, v, views, scale=0.3, offset=0), strict=True):
        assert np.array_equal(one, other)


@pytest.mark.parametrize(("dtype", "tolerance"), [("float16", 4e-3), ("float64", 1e-12)])
def test_other_floats_go_the_composed_way_and_keep_their_dtype(
    backend: CpuBackend, slot: FlashAttention[Any], draw: Draw, dtype: str, tolerance: float
) -> None:
    given_ones = [x.astype(dtype) for x in operands(draw, (1, 20, 20, 2, 1, 8))]
    before = backend.derived_calls["flash_attention"]
    out, _, _, *gradients = run(slot, *given_ones, 0.3, 0)  # type: ignore[arg-type]  # a list of four
    assert backend.derived_calls["flash_attention"] == before + 2
    want = oracle(*given_ones, 0.3, 0)  # type: ignore[arg-type]
    for g, w in zip((out, *gradients), (want[0], *want[3:]), strict=True):
        assert g.dtype == dtype
        assert float(np.abs(g.astype(np.float64) - w).max()) <= tolerance * float(np.abs(w).max())


@pytest.mark.parametrize("sizes", [(0, 4, 4, 2, 1, 8), (1, 0, 4, 2, 1, 8)], ids=["no rows", "no queries"])
def test_nothing_asked_is_nothing_found(
    slot: FlashAttention[Any], draw: Draw, sizes: tuple[int, int, int, int, int, int]
) -> None:
    given_ones = operands(draw, sizes)
    for got, want in zip(run(slot, *given_ones, 0.3, 4), given_ones, strict=False):
        assert not got.any(), want.shape
