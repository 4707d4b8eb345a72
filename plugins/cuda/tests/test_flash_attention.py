"""Flash attention against float64 formulas, finite differences and the derived version, in every order of threads."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import cupy
import numpy as np
import numpy.typing as npt
import pytest
from cupy import emulated

from turret.derived.flash_attention import DerivedFlashAttention
from turret.spi import DType, Flashed, Toolset
from turret_cuda.backend import CudaBackend
from turret_cuda.flash_attention import CudaFlashAttention
from turret_cuda.place import Place
from turret_cuda.storage import CudaStorage

X = npt.NDArray[Any]
Triple = tuple[Any, Any, Any]
TOLERANCES: dict[DType, float] = {"float32": 5e-6, "float64": 2e-14, "float16": 2e-3, "bfloat16": 1.6e-2}
FAR = 1e30  # fills what nobody sees: what reads it cannot go unnoticed
# batch, queries, keys, offset, heads, key-value heads, size of a head
SIZES = [
    (1, 1, 1, 0, 1, 1, 1),
    (2, 1, 65, 64, 4, 4, 8),
    (2, 7, 7, 0, 12, 4, 5),
    (2, 5, 9, 30, 2, 1, 4),
    (1, 5, 9, 0, 2, 2, 65),
    (1, 9, 5, 0, 1, 1, 3),
    (1, 3, 300, 297, 2, 1, 4),
    (1, 64, 64, 0, 1, 1, 64),
    (1, 65, 129, 64, 2, 1, 31),
    (1, 130, 129, 0, 3, 1, 4),
    (1, 33, 33, 0, 2, 1, 128),
    (1, 4, 70, 66, 1, 1, 129),
    (1, 3, 34, 31, 2, 1, 300),
]


@pytest.fixture(autouse=True)
def every_order(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(emulated.settings, "order", "all")
    yield
    emulated.reset()


def seen(queries: int, keys: int, offset: int) -> X:
    return np.arange(keys) <= offset + np.arange(queries)[:, None]


def attention(q: X, k: X, v: X, *, scale: float, offset: int) -> tuple[X, X, X]:
    """Output, and maximum and sum of exponentials of the scores of each row."""
    group = q.shape[2] // k.shape[2]
    k, v = (np.repeat(x, group, axis=2) for x in (k, v))
    scores = np.where(seen(q.shape[1], k.shape[1], offset), scale * np.einsum("bthd,bshd->bhts", q, k), -np.inf)
    top = scores.max(-1, keepdims=True)
    e = np.exp(scores - top)
    total = e.sum(-1, keepdims=True)
    return np.asarray(np.einsum("bhts,bshd->bthd", e / total, v)), top[..., 0], total[..., 0]


def gradients(dy: X, q: X, k: X, v: X, *, scale: float, offset: int) -> tuple[X, X, X]:
    (b, s, shared, d), group = k.shape, q.shape[2] // k.shape[2]
    kk, vv = (np.repeat(x, group, axis=2) for x in (k, v))
    scores = np.where(seen(q.shape[1], s, offset), scale * np.einsum("bthd,bshd->bhts", q, kk), -np.inf)
    e = np.exp(scores - scores.max(-1, keepdims=True))
    p = e / e.sum(-1, keepdims=True)
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
        self.storage, self.slot = CudaStorage(place), CudaFlashAttention(place)
        self.dtype, self.tolerance, self.draw = dtype, TOLERANCES[dtype], np.random.default_rng(5)

    def put(self, x: X) -> Any:
        return self.storage.from_host(x, dtype=self.dtype)

    def made(self, *shape: int) -> Any:
        return self.put(self.draw.standard_normal(shape))

    def exact(self, x: Any) -> X:
        return self.storage.to_host(x).astype(np.float64)

    def all(self, dy: Any, q: Any, k: Any, v: Any, *, scale: float, offset: int) -> tuple[Any, ...]:
        """Output, statistics and gradients."""
        saved = self.slot.attend(q, k, v, scale=scale, offset=offset)
        return *saved, *self.slot.attend_vjp(dy, q, k, v, saved, scale=scale, offset=offset)

    def check(self, dy: Any, q: Any, k: Any, v: Any, *, scale: float, offset: int) -> None:
        """All of it against the formulas."""
        got = self.all(dy, q, k, v, scale=scale, offset=offset)
        wide = self.exact(q), self.exact(k), self.exact(v)
        want = attention(*wide, scale=scale, offset=offset)
        wants = *want, *gradients(self.exact(dy), *wide, scale=scale, offset=offset)
        statistics = "float64" if self.dtype == "float64" else "float32"
        for name, g, w in zip(("out", "max", "sum", "dq", "dk", "dv"), got, wants, strict=True):
            is_statistic = name in ("max", "sum")
            tolerance = min(self.tolerance, TOLERANCES["float32"]) if is_statistic else self.tolerance
            close(self.exact(g), w, tolerance)
            assert self.storage.dtype_of(g) == (statistics if is_statistic else self.dtype)


@pytest.mark.parametrize("dtype", sorted(TOLERANCES))
@pytest.mark.parametrize(("batch", "queries", "keys", "offset", "heads", "shared", "size"), SIZES)
def test_attention_and_its_gradients_follow_the_formulas_in_any_size(
    place: Place, dtype: DType, batch: int, queries: int, keys: int, offset: int, heads: int, shared: int, size: int
) -> None:
    do = Device(place, dtype)
    q, dy = do.made(batch, queries, heads, size), do.made(batch, queries, heads, size)
    k, v = do.made(batch, keys, shared, size), do.made(batch, keys, shared, size)
    do.check(dy, q, k, v, scale=0.3, offset=offset)


def test_gradients_agree_with_finite_differences(place: Place) -> None:
    do = Device(place, "float64")
    inputs, dy = (do.made(1, 3, 4, 2), do.made(1, 6, 2, 2), do.made(1, 6, 2, 2)), do.made(1, 3, 4, 2)
    got = do.all(dy, *inputs, scale=0.7, offset=2)[3:]
    hosts, seed = [do.exact(x) for x in inputs], do.exact(dy)
    for at, gradient in enumerate(got):
        want = np.zeros(hosts[at].shape)
        for where in np.ndindex(*want.shape):
            ends = []
            for step in (1e-6, -1e-6):
                moved = [x.copy() for x in hosts]
                moved[at][where] += step
                ends.append((seed * attention(*moved, scale=0.7, offset=2)[0]).sum())
            want[where] = (ends[0] - ends[1]) / 2e-6
        close(do.exact(gradient), want, 1e-7)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_the_derived_version_says_the_same(place: Place, dtype: DType) -> None:
    do, derived = Device(place, dtype), DerivedFlashAttention(CudaBackend("emulated").capabilities().required)
    q, k, v = do.made(2, 70, 4, 9), do.made(2, 80, 2, 9), do.made(2, 80, 2, 9)
    saved = derived.attend(q, k, v, scale=0.3, offset=10)
    own = do.slot.attend(q, k, v, scale=0.3, offset=10)
    wants = *saved, *derived.attend_vjp(q, q, k, v, own, scale=0.3, offset=10)
    gots = *own, *do.slot.attend_vjp(q, q, k, v, saved, scale=0.3, offset=10)
    for got, want in zip(gots, wants, strict=True):
        close(do.exact(got), do.exact(want), do.tolerance)


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
    do.check(do.made(B, H, T, D).transpose((0, 2, 1, 3)), *lie(do), scale=0.4, offset=0)


@pytest.mark.parametrize(("shift", "gap"), [(0, 0), (0, 1), (1, 3), (2, 2), (4, 4)])
@pytest.mark.parametrize("dtype", sorted(TOLERANCES))
def test_words_are_read_only_where_every_head_begins_at_one(place: Place, dtype: DType, shift: int, gap: int) -> None:
    do = Device(place, dtype)
    q, k, v, dy = (do.made(1, 5, 2, 8 + gap)[..., shift : shift + 8] for _ in range(4))
    do.check(dy, q, k, v, scale=0.4, offset=0)


@pytest.mark.parametrize("lie", [joint, cached, by_head, broadcast])
def test_heads_in_a_projection_or_a_cache_are_not_copied(place: Place, lie: Callable[[Device], Triple]) -> None:
    do = Device(place)
    inputs = lie(do)
    place.wait("a test")
    before = emulated.launches.copy()
    do.all(inputs[0], *inputs, scale=0.4, offset=0)
    place.wait("a test")
    made = emulated.launches - before
    assert made == {"attend_f32_64": 1, "row_dots_f32": 1, "vjp_queries_f32_64": 1, "vjp_keys_f32_64": 1}


@pytest.mark.parametrize("fill", [FAR, np.inf, np.nan])
def test_keys_past_the_last_query_do_not_matter(place: Place, fill: float) -> None:
    do = Device(place)
    hosts = [do.draw.standard_normal(shape) for shape in ((B, T, H, D), (B, T + 9, K, D), (B, T + 9, K, D))]
    for x in hosts[1:]:
        x[:, T + 2 :] = fill
    out, top, total = do.slot.attend(*(do.put(x) for x in hosts), scale=0.4, offset=2)
    for x in hosts[1:]:
        x[:, T + 2 :] = 0.0
    for got, want in zip((out, top, total), attention(*hosts, scale=0.4, offset=2), strict=True):
        close(do.exact(got), want, do.tolerance)


def test_unseen_keys_get_no_gradient_however_large_they_are(place: Place) -> None:
    do = Device(place)
    hosts = [do.draw.standard_normal(shape) for shape in ((B, T, H, D), (B, T + 9, K, D), (B, T + 9, K, D))]
    for x in hosts[1:]:
        x[:, T + 2 :] = FAR
    dy = do.put(np.full((B, T, H, D), 1e9))  # its products with unseen values are infinite
    dq, dk, dv = (do.exact(x) for x in do.all(dy, *(do.put(x) for x in hosts), scale=0.4, offset=2)[3:])
    assert np.isfinite(dq).all()
    assert not dk[:, T + 2 :].any()
    assert not dv[:, T + 2 :].any()
    assert dk[:, : T + 2].any(-1).all()


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_rows_that_see_nothing_are_zeros_and_never_nan(place: Place, dtype: DType) -> None:
    do = Device(place, dtype)
    q, k, v = do.made(1, 70, 2, 4), do.made(1, 70, 1, 4), do.made(1, 70, 1, 4)
    got = [do.exact(x) for x in do.all(q, q, k, v, scale=0.4, offset=-66)]
    assert all(np.isfinite(x).all() for x in (got[0], *got[2:]))
    assert not got[0][:, :66].any()
    assert not got[3][:, :66].any()
    want = attention(do.exact(q)[:, 66:], do.exact(k), do.exact(v), scale=0.4, offset=0)[0]
    close(got[0][:, 66:], want, do.tolerance)


def test_a_value_that_is_nan_shows_in_the_rows_that_see_it(place: Place) -> None:
    do = Device(place)
    hosts = [do.draw.standard_normal((1, 70, 1, 4)) for _ in range(3)]
    hosts[1][0, 66] = np.nan
    out, _, total = (do.exact(x) for x in do.slot.attend(*(do.put(x) for x in hosts), scale=0.4, offset=0))
    assert np.isnan(out[0, 66:]).all()
    assert np.isnan(total[0, 0, 66:]).all()
    assert np.isfinite(out[0, :66]).all()


def test_scores_far_from_zero_make_distributions(place: Place) -> None:
    do = Device(place)
    q, k, v = do.put(np.full((1, 4, 1, 1), 2.0**50)), do.put(np.full((1, 6, 1, 1), -(2.0**50))), do.made(1, 6, 1, 1)
    saved = do.slot.attend(q, k, v, scale=2.0**-40, offset=0)
    assert do.exact(saved.row_max).tolist() == [[[-(2.0**60)] * 4]]
    assert do.exact(saved.row_sum).tolist() == [[[1, 2, 3, 4]]]
    close(do.exact(saved.out), attention(do.exact(q) * 0, do.exact(k), do.exact(v), scale=1, offset=0)[0], 1e-6)


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
    out, top, total, dq, dk, dv = do.all(q, q, k, v, scale=1.0, offset=0)
    assert out.shape == dq.shape == q.shape
    assert top.shape == total.shape == (batch, 4, queries)
    assert not do.exact(dk).any()
    assert not do.exact(dv).any()


def test_everything_has_the_same_bits_at_every_run_and_in_a_captured_program(place: Place, tools: Toolset[Any]) -> None:
    do = Device(place)
    inputs = do.made(2, 70, 4, 5), do.made(2, 70, 2, 5), do.made(2, 70, 2, 5)

    def step(q: Any, k: Any, v: Any) -> tuple[Any, ...]:
        return do.all(q, q, k, v, scale=0.4, offset=0)

    program = tools.compile.compile(step)
    runs = [[do.storage.to_host(x).tobytes() for x in run(*inputs)] for run in (step, step, program, program)]
    assert runs[0] == runs[1] == runs[2] == runs[3]


def test_memory_grows_with_the_queries_and_not_with_their_square(place: Place) -> None:
    do, peaks = Device(Place("cuda:emulated", 0)), []
    emulated.settings.order = "forward"
    for length in (128, 256):
        q, k, v = (do.made(1, length, 1, 4) for _ in range(3))
        saved = do.slot.attend(q, k, v, scale=0.4, offset=0)
        grads = do.slot.attend_vjp(q, q, k, v, saved, scale=0.4, offset=0)
        do.storage.synchronize(*grads)
        memory = do.storage.memory()
        assert memory is not None
        peaks.append(memory.peak_bytes)
        del q, k, v, saved, grads
    assert peaks[1] < 2.2 * peaks[0]


@pytest.mark.parametrize("axis", ["batch", "token", "head"])
def test_steps_beyond_two_to_the_31_lead_to_the_right_element(axis: str) -> None:
    place = Place("cuda:emulated", 0)
    do = Device(place, "float16")
    emulated.settings.order = "forward"
    emulated.set_total_memory(6 * 2**30)
    small, step = do.made(2, 2, 2, 4), 2**31 + 2**16  # elements: more than 4 GiB, of which few pages are ever touched
    large = place.empty((step + 64,), small.dtype)
    lie = [{"batch": 32, "token": 4, "head": 16, axis: step}[each] * 2 for each in ("batch", "token", "head")]
    far = cupy.ndarray(small.shape, small.dtype, large.data, strides=(*lie, 2))
    place.copy_into(far, small)
    got = do.all(far, far, far, far, scale=0.4, offset=0)
    want = do.all(small, small, small, small, scale=0.4, offset=0)
    emulated.set_total_memory(4 * 2**30)
    for g, w in zip(got, want, strict=True):
        assert do.storage.to_host(g).tobytes() == do.storage.to_host(w).tobytes()


def test_saved_results_may_be_views(place: Place) -> None:
    do = Device(place)
    q, k, v = do.made(B, T, H, D), do.made(B, T, K, D), do.made(B, T, K, D)
    saved = do.slot.attend(q, k, v, scale=0.4, offset=0)
    wide = (do.put(np.repeat(do.exact(x), 2, axis=-1)) for x in saved)
    views = Flashed(*(x[..., ::2] for x in wide))
    for got, want in zip(
        do.slot.attend_vjp(q, q, k, v, views, scale=0.4, offset=0),
        do.slot.attend_vjp(q, q, k, v, saved, scale=0.4, offset=0),
        strict=True,
    ):
        assert do.storage.to_host(got).tobytes() == do.storage.to_host(want).tobytes()
