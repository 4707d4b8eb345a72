"""Flash attention in both forms: values in float64, tiles nobody sees, linear memory, captured and donated."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from turret.derived import fill
from turret.spi import Flashed, Toolset
from turret_tpu import flash_grid, flash_kernels, flash_tiles
from turret_tpu.backend import TpuBackend
from turret_tpu.library import jax

X = jax.Array
FORMS = ("cpu", "interpret")
SCALE = 0.3


@pytest.fixture(scope="module", params=FORMS)
def opened(request: pytest.FixtureRequest) -> TpuBackend:
    return TpuBackend(request.param)


@pytest.fixture
def tools(opened: TpuBackend) -> Toolset[Any]:
    return fill(opened.capabilities())


@pytest.fixture
def small_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few queries make many tiles. Shapes of these tests are their own: programs are kept by shape."""
    monkeypatch.setattr(flash_grid, "TILE", 32)
    monkeypatch.setattr(flash_tiles, "LARGEST", 32)


def drawn(queries: int, keys: int, heads: int, kv_heads: int, size: int, batch: int = 1) -> list[Any]:
    """q, k, v, dy."""
    random = np.random.default_rng(5)
    shapes = [(batch, n, h, size) for n, h in ((queries, heads), (keys, kv_heads), (keys, kv_heads), (queries, heads))]
    return [random.standard_normal(shape).astype(np.float32) for shape in shapes]


def truth(given: list[Any], offset: int) -> list[Any]:
    """Vaswani et al. 2017, eq. 1, row maximum and sum, and gradients by the product rule, all in float64."""
    q, k, v, dy = given
    shared = q.shape[2] // k.shape[2]
    k, v = (np.repeat(x, shared, axis=2) for x in (k, v))
    q, k, v, dy = (x.astype(np.float64).transpose(0, 2, 1, 3) for x in (q, k, v, dy))
    seen = np.arange(k.shape[2]) <= np.arange(q.shape[2])[:, None] + offset
    scores = np.where(seen, SCALE * q @ k.swapaxes(2, 3), -np.inf)
    row_max = scores.max(-1, keepdims=True)
    weights = np.exp(scores - row_max)
    row_sum = weights.sum(-1, keepdims=True)
    p = weights / row_sum
    dp = dy @ v.swapaxes(2, 3)
    ds = SCALE * p * (dp - (dp * p).sum(-1, keepdims=True))
    out, dq, dk, dv = (x.transpose(0, 2, 1, 3) for x in (p @ v, ds @ k, ds.swapaxes(2, 3) @ q, p.swapaxes(2, 3) @ dy))
    dk, dv = (x.reshape(*x.shape[:2], -1, shared, x.shape[3]).sum(3) for x in (dk, dv))
    return [out, row_max[..., 0], row_sum[..., 0], dq, dk, dv]


def both(slot: Any, offset: int) -> Callable[..., tuple[X, ...]]:
    """(q, k, v, dy) to out, row_max, row_sum, dq, dk, dv."""

    def run(q: X, k: X, v: X, dy: X) -> tuple[X, ...]:
        saved = slot.attend(q, k, v, scale=SCALE, offset=offset)
        return (*saved, *slot.attend_vjp(dy, q, k, v, saved, scale=SCALE, offset=offset))

    return run


@pytest.mark.usefixtures("small_tiles")
@pytest.mark.parametrize(
    ("queries", "keys", "heads", "kv_heads", "size", "offset"),
    [(75, 75, 2, 2, 8, 0), (70, 99, 6, 2, 5, 29), (33, 98, 2, 1, 8, 0), (98, 33, 1, 1, 8, 0), (41, 71, 4, 1, 3, 1000)],
)
def test_many_tiles_are_right_in_float64(
    tools: Toolset[Any], queries: int, keys: int, heads: int, kv_heads: int, size: int, offset: int
) -> None:
    hosts = drawn(queries, keys, heads, kv_heads, size)
    got = both(tools.flash_attention, offset)(*map(tools.storage.from_host, hosts))
    for mine, want in zip(got, truth(hosts, offset), strict=True):
        np.testing.assert_allclose(tools.storage.to_host(mine), want, rtol=1e-4, atol=2e-5)


@pytest.mark.usefixtures("small_tiles")
def test_tiles_nobody_sees_may_hold_anything_finite_and_have_no_gradient(tools: Toolset[Any]) -> None:
    q, k, v, dy = drawn(37, 130, 2, 1, 8)
    k[:, 37:], v[:, 37:] = 1e30, -1e30
    got = [
        tools.storage.to_host(x) for x in both(tools.flash_attention, 0)(*map(tools.storage.from_host, (q, k, v, dy)))
    ]
    assert all(np.isfinite(x).all() for x in got)
    assert not got[4][:, 37:].any()
    assert not got[5][:, 37:].any()
    k[:, 37:], v[:, 37:] = 0, 0
    for mine, want in zip(got, truth([q, k, v, dy], 0), strict=True):
        np.testing.assert_allclose(mine, want, rtol=1e-4, atol=2e-5)


@pytest.mark.usefixtures("small_tiles")
def test_sums_over_a_group_of_heads_have_the_same_bits_every_time(tools: Toolset[Any]) -> None:
    given = [tools.storage.from_host(x) for x in drawn(72, 72, 4, 1, 8)]
    first, second = (both(tools.flash_attention, 0)(*given) for _ in range(2))
    assert [tools.storage.to_host(x).tobytes() for x in first] == [tools.storage.to_host(x).tobytes() for x in second]


@pytest.mark.parametrize("half", ["float16", "bfloat16"])
def test_halves_are_summed_in_float32(tools: Toolset[Any], half: Any) -> None:
    # 2000 equal weights of 1: a half would stop counting at 2048 or 256
    storage = tools.storage
    q, k = (storage.full((1, n, 1, 8), 0.0, dtype=half) for n in (1, 3000))
    v = storage.full((1, 3000, 1, 8), 1.5, dtype=half)
    got = tools.flash_attention.attend(q, k, v, scale=1.0, offset=2999)
    assert storage.dtype_of(got.out) == half
    assert storage.to_host(got.row_sum).tolist() == [[[3000.0]]]
    assert storage.to_host(got.out).tolist() == [[[[1.5] * 8]]]


@pytest.mark.usefixtures("small_tiles")
def test_a_captured_step_with_donated_arrays_is_the_same(tools: Toolset[Any]) -> None:
    hosts = drawn(40, 40, 2, 1, 8)
    program = tools.compile.compile(both(tools.flash_attention, 0), donate=(0, 1, 2))
    given = [tools.storage.from_host(x) for x in hosts]
    got = program(*given)
    assert [x.is_deleted() for x in given] == [True, True, True, False]
    for mine, want in zip(got, truth(hosts, 0), strict=True):
        np.testing.assert_allclose(tools.storage.to_host(mine), want, rtol=1e-4, atol=2e-5)


def test_memory_grows_with_the_length_and_not_its_square(tools: Toolset[Any]) -> None:
    def temporary(length: int) -> int:
        given = [tools.storage.full((1, length, 2, 16), 0.0, dtype="float32")] * 4
        compiled = jax.jit(both(tools.flash_attention, 0)).lower(*given).compile()
        found: Any = compiled.memory_analysis()
        return int(found.temp_size_in_bytes)

    short, long = temporary(1024), temporary(2048)
    assert long <= 2.2 * short
    assert long < 4 * 2 * 2048 * 2048 / 4  # a quarter of the scores of two heads


def test_heads_too_wide_for_a_kernel_are_attended_all_the_same(tools: Toolset[Any]) -> None:
    hosts = drawn(5, 7, 2, 1, flash_kernels.WIDEST + 8)
    got = both(tools.flash_attention, 2)(*map(tools.storage.from_host, hosts))
    for mine, want in zip(got, truth(hosts, 2), strict=True):
        np.testing.assert_allclose(tools.storage.to_host(mine), want, rtol=1e-3, atol=1e-3)


def test_only_what_has_no_elements_is_composed_and_counted(opened: TpuBackend, tools: Toolset[Any]) -> None:
    before = opened.derived_calls["flash_attention"]
    q, k, v, dy = (tools.storage.from_host(x) for x in drawn(0, 3, 2, 1, 4))
    saved = tools.flash_attention.attend(q, k, v, scale=SCALE, offset=0)
    assert isinstance(saved, Flashed)
    assert [x.shape for x in saved] == [(1, 0, 2, 4), (1, 2, 0), (1, 2, 0)]
    _, dk, dv = tools.flash_attention.attend_vjp(dy, q, k, v, saved, scale=SCALE, offset=0)
    assert not tools.storage.to_host(dk).any()
    assert not tools.storage.to_host(dv).any()
    assert opened.derived_calls["flash_attention"] == before + 2
