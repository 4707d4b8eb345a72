"""Causal attention against float64 formulas and finite differences, on heads wherever they lie in larger arrays."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import cupy
import numpy as np
import numpy.typing as npt
import pytest
from cupy import emulated

from turret.spi import DType
from turret_cuda.causal_attention import CudaCausalAttention
from turret_cuda.place import Place
from turret_cuda.storage import CudaStorage

X = npt.NDArray[Any]
Triple = tuple[Any, Any, Any]
TOLERANCES: dict[DType, float] = {"float32": 3e-6, "float64": 1e-13, "float16": 1e-3, "bfloat16": 8e-3}
FAR = 1e30  # fills what nobody sees and what lies around the operands: what reads it cannot go unnoticed
# batch, queries, keys, offset, heads, key-value heads, size of a head
SIZES = [
    (1, 1, 1, 0, 1, 1, 1),
    (2, 1, 65, 64, 4, 4, 8),
    (2, 1, 9, 3, 4, 2, 31),
    (2, 7, 7, 0, 12, 4, 5),
    (2, 5, 9, 4, 6, 2, 8),
    (1, 5, 9, 0, 2, 2, 4),
    (1, 9, 5, 0, 1, 1, 3),
    (2, 5, 9, 30, 2, 1, 4),
    (1, 3, 300, 297, 2, 1, 4),
    (1, 2, 2100, 2090, 1, 1, 1),
    (1, 33, 33, 0, 2, 1, 16),
]


def seen(queries: int, keys: int, offset: int) -> X:
    return np.arange(keys) <= offset + np.arange(queries)[:, None]


def attention(q: X, k: X, v: X, *, scale: float, offset: int) -> tuple[X, X]:
    group = q.shape[2] // k.shape[2]
    k, v = (np.repeat(x, group, axis=2) for x in (k, v))
    scores = np.where(seen(q.shape[1], k.shape[1], offset), scale * np.einsum("bthd,bshd->bhts", q, k), -np.inf)
    e = np.exp(scores - scores.max(-1, keepdims=True))
    p = e / e.sum(-1, keepdims=True)
    return np.asarray(np.einsum("bhts,bshd->bthd", p, v)), p


def gradients(dy: X, q: X, k: X, v: X, p: X, *, scale: float) -> tuple[X, X, X]:
    (b, s, shared, d), group = k.shape, q.shape[2] // k.shape[2]
    kk, vv = (np.repeat(x, group, axis=2) for x in (k, v))
    dp = np.einsum("bthd,bshd->bhts", dy, vv)
    ds = scale * p * (dp - (p * dp).sum(-1, keepdims=True))
    dk, dv = np.einsum("bhts,bthd->bshd", ds, q), np.einsum("bhts,bthd->bshd", p, dy)
    folded = b, s, shared, group, d
    return np.einsum("bhts,bshd->bthd", ds, kk), dk.reshape(folded).sum(3), dv.reshape(folded).sum(3)


def close(got: X, want: X, tolerance: float) -> None:
    assert got.shape == want.shape
    scale = max(float(np.abs(want).max(initial=0.0)), 1e-3)
    assert float(np.abs(got.astype(np.float64) - want).max(initial=0.0)) <= tolerance * scale


class Device:
    def __init__(self, place: Place, dtype: DType = "float32") -> None:
        self.storage, self.slot = CudaStorage(place), CudaCausalAttention(place)
        self.dtype, self.tolerance, self.draw = dtype, TOLERANCES[dtype], np.random.default_rng(5)

    def put(self, x: X) -> Any:
        return self.storage.from_host(x, dtype=self.dtype)

    def made(self, *shape: int) -> Any:
        return self.put(self.draw.standard_normal(shape))

    def exact(self, x: Any) -> X:
        return self.storage.to_host(x).astype(np.float64)

    def check(self, dy: Any, q: Any, k: Any, v: Any, *, scale: float, offset: int) -> None:
        """Output, probabilities and gradients of these arrays."""
        wide = wq, wk, wv = self.exact(q), self.exact(k), self.exact(v)
        out, p = self.slot.attend(q, k, v, scale=scale, offset=offset)
        want, wp = attention(*wide, scale=scale, offset=offset)
        close(self.exact(out), want, self.tolerance)
        got = self.exact(p)
        close(got, wp, min(self.tolerance, TOLERANCES["float32"]))
        assert not got[:, :, ~seen(q.shape[1], k.shape[1], offset)].any()
        assert self.storage.dtype_of(out) == self.dtype
        assert self.storage.dtype_of(p) == ("float64" if self.dtype == "float64" else "float32")
        wants = gradients(self.exact(dy), wq, wk, wv, got, scale=scale)
        for g, w in zip(self.slot.attend_vjp(dy, q, k, v, p, scale=scale), wants, strict=True):
            close(self.exact(g), w, 3 * self.tolerance)
            assert self.storage.dtype_of(g) == self.dtype


@pytest.mark.parametrize("dtype", sorted(TOLERANCES))
@pytest.mark.parametrize(("batch", "queries", "keys", "offset", "heads", "shared", "size"), SIZES)
def test_attention_and_its_gradients_follow_the_formulas_in_any_size(
    place: Place, dtype: DType, batch: int, queries: int, keys: int, offset: int, heads: int, shared: int, size: int
) -> None:
    do = Device(place, dtype)
    q, dy = do.made(batch, queries, heads, size), do.made(batch, queries, heads, size)
    k, v = do.made(batch, keys, shared, size), do.made(batch, keys, shared, size)
    do.check(dy, q, k, v, scale=0.3, offset=offset)


@pytest.mark.parametrize(
    ("queries", "keys", "offset", "heads", "shared", "size"), [(4, 4, 0, 2, 1, 3), (2, 6, 3, 4, 2, 2)]
)
def test_gradients_agree_with_finite_differences(
    place: Place, queries: int, keys: int, offset: int, heads: int, shared: int, size: int
) -> None:
    do = Device(place, "float64")
    inputs = do.made(1, queries, heads, size), do.made(1, keys, shared, size), do.made(1, keys, shared, size)
    dy = do.made(1, queries, heads, size)
    _, p = do.slot.attend(*inputs, scale=0.7, offset=offset)
    got = do.slot.attend_vjp(dy, *inputs, p, scale=0.7)
    hosts, seed = [do.exact(x) for x in inputs], do.exact(dy)
    for at, gradient in enumerate(got):
        want = np.zeros(hosts[at].shape)
        for where in np.ndindex(*want.shape):
            ends = []
            for step in (1e-6, -1e-6):
                moved = [x.copy() for x in hosts]
                moved[at][where] += step
                ends.append((seed * attention(*moved, scale=0.7, offset=offset)[0]).sum())
            want[where] = (ends[0] - ends[1]) / 2e-6
        close(do.exact(gradient), want, 1e-7)


B, T, H, K, D = 2, 6, 4, 2, 5


def joint(do: Device) -> Triple:
    """Slices of one projection."""
    whole = do.made(B, T, (H + 2 * K) * D)
    ends, parts = (0, H * D, (H + K) * D, (H + 2 * K) * D), []
    for start, stop in itertools.pairwise(ends):
        part = whole[:, :, start:stop]
        step, width = part.strides, part.dtype.itemsize
        shape = B, T, (stop - start) // D, D
        parts.append(cupy.ndarray(shape, part.dtype, part.data, strides=(*step[:2], D * width, width)))
    return parts[0], parts[1], parts[2]


def cached(do: Device) -> Triple:
    """The filled part of a longer cache."""
    caches = []
    for _ in range(2):
        around = np.full((B, T + 9, K, D), FAR if do.dtype != "float16" else 6e4)
        around[:, :T] = do.draw.standard_normal((B, T, K, D))
        caches.append(do.put(around)[:, :T])
    return do.made(B, T, H, D), caches[0], caches[1]


def by_head(do: Device) -> Triple:
    """Heads first in memory."""
    q, k, v = (do.made(B, heads, T, D).transpose((0, 2, 1, 3)) for heads in (H, K, K))
    return q, k, v


def broadcast(do: Device) -> Triple:
    """One sequence of keys for the whole batch, one query for all positions."""
    q, k, v = do.made(B, 1, H, D), do.made(1, T, K, D), do.made(1, T, K, D)
    shape = B, T, K, D
    return cupy.broadcast_to(q, (B, T, H, D)), cupy.broadcast_to(k, shape), cupy.broadcast_to(v, shape)


def with_gaps(do: Device) -> Triple:
    """Tokens backwards, elements with gaps, sequences backwards."""
    return do.made(B, T, H, D)[:, ::-1], do.made(B, T, K, 2 * D)[..., ::2], do.made(B, T, K, D)[::-1]


def turned(do: Device) -> Triple:
    """The size of a head outermost."""
    q, k, v = (do.made(D, heads, T, B).transpose((3, 2, 1, 0)) for heads in (H, K, K))
    return q, k, v


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float64"])
@pytest.mark.parametrize("lie", [joint, cached, by_head, broadcast, with_gaps, turned])
def test_heads_are_read_wherever_they_lie(place: Place, lie: Callable[[Device], Triple], dtype: DType) -> None:
    do = Device(place, dtype)
    dy = do.made(B, H, T, D).transpose((0, 2, 1, 3))
    do.check(dy, *lie(do), scale=0.4, offset=0)


@pytest.mark.parametrize("lie", [joint, cached, by_head])
def test_heads_in_a_projection_or_a_cache_are_not_copied(place: Place, lie: Callable[[Device], Triple]) -> None:
    do = Device(place)
    q, k, v = lie(do)
    place.wait("a test")
    before = emulated.launches.copy()
    _, p = do.slot.attend(q, k, v, scale=0.4, offset=0)
    do.slot.attend_vjp(q, q, k, v, p, scale=0.4)
    place.wait("a test")
    made = emulated.launches - before
    assert made == {"addresses": 2, "softmax_f32": 1, "softmax_vjp_f32": 1, "over_groups_f32": 2}


@pytest.mark.parametrize("fill", [FAR, np.inf, np.nan])
def test_keys_past_the_last_query_do_not_matter(place: Place, fill: float) -> None:
    do = Device(place)
    hosts = [do.draw.standard_normal(shape) for shape in ((B, T, H, D), (B, T + 9, K, D), (B, T + 9, K, D))]
    for x in hosts[1:]:
        x[:, T + 2 :] = fill
    q, k, v = (do.put(x) for x in hosts)
    out, p = do.slot.attend(q, k, v, scale=0.4, offset=2)
    for x in hosts[1:]:
        x[:, T + 2 :] = 0.0
    want, wp = attention(*hosts, scale=0.4, offset=2)
    close(do.exact(out), want, do.tolerance)
    close(do.exact(p), wp, do.tolerance)


def test_unseen_keys_get_no_gradient_however_large_they_are(place: Place) -> None:
    do = Device(place)
    hosts = [do.draw.standard_normal(shape) for shape in ((B, T, H, D), (B, T + 9, K, D), (B, T + 9, K, D))]
    for x in hosts[1:]:
        x[:, T + 2 :] = FAR
    q, k, v = (do.put(x) for x in hosts)
    dy = do.put(np.full((B, T, H, D), 1e9))  # its products with unseen values are infinite
    _, p = do.slot.attend(q, k, v, scale=0.4, offset=2)
    dq, dk, dv = (do.exact(x) for x in do.slot.attend_vjp(dy, q, k, v, p, scale=0.4))
    assert np.isfinite(dq).all()
    assert not dk[:, T + 2 :].any()
    assert not dv[:, T + 2 :].any()
    assert dk[:, : T + 2].any(-1).all()


def test_scores_far_from_zero_make_distributions(place: Place) -> None:
    do = Device(place)
    q, k, v = do.put(np.full((1, 4, 1, 1), 2.0**50)), do.put(np.full((1, 6, 1, 1), -(2.0**50))), do.made(1, 6, 1, 1)
    _, p = do.slot.attend(q, k, v, scale=2.0**-40, offset=0)
    want = np.where(seen(4, 6, 0), 1 / np.arange(1, 5)[:, None], 0.0)
    close(do.exact(p)[0, 0], want, 1e-6)


@pytest.mark.parametrize("scale", [0, 1, -0.7, 0.0])
def test_any_number_is_a_scale(place: Place, scale: float) -> None:
    do = Device(place)
    q, k, v = by_head(do)
    do.check(q, q, k, v, scale=scale, offset=1)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize(("batch", "queries"), [(0, 3), (2, 0), (0, 0)])
def test_no_queries_leave_zero_gradients(place: Place, dtype: DType, batch: int, queries: int) -> None:
    do = Device(place, dtype)
    q, k, v = do.made(batch, queries, 4, 3), do.made(batch, 5, 2, 3), do.made(batch, 5, 2, 3)
    out, p = do.slot.attend(q, k, v, scale=1.0, offset=0)
    assert out.shape == q.shape
    assert p.shape == (batch, 4, queries, 5)
    dq, dk, dv = do.slot.attend_vjp(q, q, k, v, p, scale=1.0)
    assert dq.shape == q.shape
    assert not do.exact(dk).any()
    assert not do.exact(dv).any()


def test_everything_has_the_same_bits_at_every_run(place: Place) -> None:
    do = Device(place)
    q, k, v = joint(do)
    runs = []
    for _ in range(2):
        out, p = do.slot.attend(q, k, v, scale=0.4, offset=0)
        results = out, p, *do.slot.attend_vjp(q, q, k, v, p, scale=0.4)
        runs.append([do.storage.to_host(x).tobytes() for x in results])
    assert runs[0] == runs[1]


@pytest.mark.parametrize(
    ("dtype", "shift", "rounded"),
    [("float32", 0, True), ("float32", 1, False), ("bfloat16", 0, False), ("float64", 0, False)],
)
def test_tf32_takes_part_in_float32_alone_and_where_every_address_allows_it(
    monkeypatch: pytest.MonkeyPatch, dtype: DType, shift: int, rounded: bool
) -> None:
    monkeypatch.setenv("CUPY_TF32", "1")
    do = Device(Place("cuda:emulated", 0), dtype)
    whole = do.made(2, 8, 4, 8 + 4)
    q = whole[..., shift : shift + 8]
    out, p = do.slot.attend(q, q, q, scale=0.3, offset=0)
    want, wp = attention(*[do.exact(q)] * 3, scale=0.3, offset=0)
    assert (float(np.abs(do.exact(p) - wp).max()) > 1e-5) is rounded
    close(do.exact(out), want, 1e-2 if rounded else do.tolerance)
