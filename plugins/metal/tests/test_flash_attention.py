"""Memory-linear attention: values and gradients beside float64, what must not leak, and memory against length."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

from turret.spi import DType, Toolset
from turret_metal.flash_attention import ROWS, MetalFlashAttention
from turret_metal.stream import Stream, stream_of

Put = Callable[[Any], mx.array]
Hosts = tuple[np.ndarray, ...]
SCALE = 0.3

# B, T, S, H, K, d, offset
SIZES = [
    (2, 5, 9, 4, 2, 8, 4),
    (1, ROWS, ROWS, 2, 1, 4, 0),
    (2, 2 * ROWS + 3, 2 * ROWS + 3, 6, 2, 8, 0),  # three blocks, the last one of three queries
    (1, ROWS + 1, ROWS + 40, 2, 2, 5, 17),  # keys that nobody sees
    (1, 2 * ROWS, ROWS // 2, 3, 1, 4, 0),  # more queries than keys
    (1, 1, 200, 4, 4, 8, 199),
    (2, 3, 1, 2, 1, 8, 0),
]


def drawn(draw: np.random.Generator, b: int, t: int, s: int, h: int, kv: int, d: int) -> Hosts:
    """q, k, v and the gradient of the output."""
    shapes = ((b, t, h, d), (b, s, kv, d), (b, s, kv, d), (b, t, h, d))
    return tuple(draw.standard_normal(shape).astype(np.float32) for shape in shapes)


def truth(hosts: Hosts, offset: int) -> dict[str, np.ndarray]:
    """Attention and its gradients with all scores at hand, in float64."""
    q, k, v, dy = (x.astype(np.float64) for x in hosts)
    group = q.shape[2] // k.shape[2]
    k, v = (np.repeat(x, group, axis=2) for x in (k, v))
    scores = SCALE * np.einsum("bthd,bshd->bhts", q, k)
    seen = np.arange(k.shape[1]) <= offset + np.arange(q.shape[1])[:, None]
    scores = np.where(seen, scores, -np.inf)
    row_max = scores.max(axis=-1)
    weights = np.exp(scores - row_max[..., None])
    row_sum = weights.sum(axis=-1)
    p = weights / row_sum[..., None]
    dp = np.einsum("bthd,bshd->bhts", dy, v)
    ds = SCALE * p * (dp - (p * dp).sum(axis=-1, keepdims=True))

    def gathered(x: np.ndarray) -> np.ndarray:
        b, s, h, d = x.shape
        total: np.ndarray = x.reshape(b, s, h // group, group, d).sum(axis=3)
        return total

    return {
        "out": np.einsum("bhts,bshd->bthd", p, v),
        "row_max": row_max,
        "row_sum": row_sum,
        "dq": np.einsum("bhts,bshd->bthd", ds, k),
        "dk": gathered(np.einsum("bhts,bthd->bshd", ds, q)),
        "dv": gathered(np.einsum("bhts,bthd->bshd", p, dy)),
    }


def both(slot: Any, arrays: tuple[mx.array, ...], offset: int) -> dict[str, mx.array]:
    q, k, v, dy = arrays
    saved = slot.attend(q, k, v, scale=SCALE, offset=offset)
    dq, dk, dv = slot.attend_vjp(dy, q, k, v, saved, scale=SCALE, offset=offset)
    return {**saved._asdict(), "dq": dq, "dk": dk, "dv": dv}


@pytest.fixture(params=["cpu", "gpu"])
def slot(request: pytest.FixtureRequest) -> MetalFlashAttention:
    """On the CPU device, whose stream may pass itself off as the GPU's."""
    stream = Stream("metal", mx.Device(mx.cpu), stream_of("cpu").total_bytes)
    stream.on_gpu = request.param == "gpu"
    return MetalFlashAttention(stream)


@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_output_statistics_and_gradients_are_those_of_whole_attention(
    slot: MetalFlashAttention, draw: np.random.Generator, tools: Toolset[mx.array], put: Put, sizes: tuple[int, ...]
) -> None:
    hosts = drawn(draw, *sizes[:6])
    got, want = both(slot, tuple(put(x) for x in hosts), sizes[6]), truth(hosts, sizes[6])
    for name, each in want.items():
        host = tools.storage.to_host(got[name])
        assert host.dtype == np.float32
        np.testing.assert_allclose(host, each, rtol=2e-5, atol=2e-5, err_msg=name)


@pytest.mark.parametrize(("dtype", "unit"), [("float16", 2.0**-11), ("bfloat16", 2.0**-8)])
def test_halves_are_rounded_once_at_the_end(
    draw: np.random.Generator, tools: Toolset[mx.array], dtype: DType, unit: float
) -> None:
    hosts = drawn(draw, 1, ROWS + 9, ROWS + 9, 4, 2, 8)
    arrays = tuple(tools.storage.from_host(x, dtype=dtype) for x in hosts)
    rounded = tuple(tools.storage.to_host(x) for x in arrays)
    got, want = both(tools.flash_attention, arrays, 0), truth(rounded, 0)
    for name, each in want.items():
        assert tools.storage.dtype_of(got[name]) == ("float32" if name.startswith("row") else dtype)
        # gradients follow from the rounded output
        slack = 8 * unit if name.startswith("d") else unit
        np.testing.assert_allclose(
            tools.storage.to_host(got[name]).astype(np.float64), each, rtol=1.01 * slack, atol=slack, err_msg=name
        )


def test_sums_of_halves_do_not_stop_growing(tools: Toolset[mx.array]) -> None:
    """float16 counts to 2048 and no further."""
    full, keys = tools.storage.full, 3000
    q, k, v = (
        full((1, 1, 1, 4), 0, dtype="float16"),
        full((1, keys, 1, 4), 1, dtype="float16"),
        np.ones((1, keys, 1, 4)),
    )
    out, _, row_sum = tools.flash_attention.attend(
        q, k, tools.storage.from_host(v, dtype="float16"), scale=1.0, offset=keys - 1
    )
    assert tools.storage.to_host(row_sum).item() == keys
    np.testing.assert_allclose(tools.storage.to_host(out), 1, rtol=2**-11)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_what_a_query_does_not_see_never_reaches_it(
    draw: np.random.Generator, tools: Toolset[mx.array], put: Put, bad: float
) -> None:
    hosts, first = drawn(draw, 1, ROWS + 20, ROWS + 20, 2, 1, 4), ROWS + 7
    clean = both(tools.flash_attention, tuple(put(x) for x in hosts), 0)
    for x in hosts[1:3]:
        x[:, first:] = bad
    got = both(tools.flash_attention, tuple(put(x) for x in hosts), 0)
    for name in ("out", "dq"):
        before, after = (tools.storage.to_host(each[name]) for each in (clean, got))
        assert (after[:, :first] == before[:, :first]).all(), name
        if np.isnan(bad) or name == "out":  # an infinite key may as well be one of weight 0
            assert not np.isfinite(after[:, first:]).any(), name


def test_a_value_that_is_not_finite_reaches_those_that_see_it(
    draw: np.random.Generator, tools: Toolset[mx.array], put: Put
) -> None:
    q, k, v, _ = drawn(draw, 1, 9, 9, 4, 2, 4)
    v[0, 3, 1, 2], v[0, 5, 0, 0], v[0, 6, 0, 0] = np.nan, np.inf, -np.inf
    out = tools.storage.to_host(tools.flash_attention.attend(put(q), put(k), put(v), scale=SCALE, offset=0).out)
    want = np.zeros(out.shape)
    want[0, 3:, 2:, 2], want[0, 5, :2, 0], want[0, 6:, :2, 0] = np.nan, np.inf, np.nan
    assert (np.isnan(out) == np.isnan(want)).all()
    assert (np.isinf(out) == np.isinf(want)).all()


def test_keys_that_nobody_sees_get_no_gradient_whatever_they_hold(
    draw: np.random.Generator, tools: Toolset[mx.array], put: Put
) -> None:
    hosts, seen = drawn(draw, 2, 6, 12, 4, 2, 8), 8
    for x in hosts[1:3]:
        x[:, seen:] = np.nan
    got = both(tools.flash_attention, tuple(put(x) for x in hosts), 2)
    assert all(np.isfinite(tools.storage.to_host(x)).all() for x in got.values())
    assert not any(tools.storage.to_host(got[name])[:, seen:].any() for name in ("dk", "dv"))


def test_two_runs_agree_to_the_bit(draw: np.random.Generator, tools: Toolset[mx.array], put: Put) -> None:
    arrays = tuple(put(x) for x in drawn(draw, 2, 150, 150, 4, 2, 8))
    once, again = (both(tools.flash_attention, arrays, 0) for _ in range(2))
    assert all((tools.storage.to_host(x) == tools.storage.to_host(again[name])).all() for name, x in once.items())


def test_nothing_to_ask_gives_nothing(tools: Toolset[mx.array], put: Put) -> None:
    arrays = tuple(put(np.ones(shape)) for shape in ((2, 0, 4, 8), (2, 3, 2, 8), (2, 3, 2, 8), (2, 0, 4, 8)))
    got = both(tools.flash_attention, arrays, 0)
    assert [got[name].shape for name in ("out", "row_max", "row_sum")] == [(2, 0, 4, 8), (2, 4, 0), (2, 4, 0)]
    assert not any(tools.storage.to_host(got[name]).any() for name in ("dk", "dv"))


def test_a_program_may_attend_twice_to_the_same(draw: np.random.Generator, tools: Toolset[mx.array], put: Put) -> None:
    """As one does that computes its activations again: MLX merges what is equal."""
    arrays = tuple(put(x) for x in drawn(draw, 1, 3 * ROWS, 3 * ROWS, 2, 1, 4))

    def twice(*arrays: mx.array) -> tuple[mx.array, ...]:
        q, k, v, _ = arrays
        first = tools.flash_attention.attend(q, k, v, scale=SCALE, offset=0).out
        return (tools.elementwise.multiply(first, 2.0), *both(tools.flash_attention, arrays, 0).values())

    got = tools.compile.compile(twice)(*arrays)
    want = both(tools.flash_attention, arrays, 0)
    np.testing.assert_allclose(tools.storage.to_host(got[0]), 2 * tools.storage.to_host(want["out"]), rtol=1e-6)
    for mine, each in zip(got[1:], want.values(), strict=True):
        np.testing.assert_allclose(tools.storage.to_host(mine), tools.storage.to_host(each), rtol=1e-5, atol=1e-6)


def peak(step: Callable[..., tuple[mx.array, ...]], tools: Toolset[mx.array], length: int) -> int:
    """Bytes that a forward and a backward pass take beyond their inputs, results included."""
    hosts = drawn(np.random.default_rng(length), 1, length, length, 2, 1, 8)
    arrays = [tools.storage.from_host(x) for x in hosts]
    tools.storage.synchronize(*arrays)
    mx.clear_cache()
    mx.reset_peak_memory()
    used = tools.storage.memory()
    assert used is not None
    tools.storage.synchronize(*step(*arrays))
    after = tools.storage.memory()
    assert after is not None
    return after.peak_bytes - used.used_bytes


@pytest.mark.parametrize("captured", [False, True], ids=["eager", "captured"])
def test_memory_grows_with_the_length_and_not_its_square(tools: Toolset[mx.array], captured: bool) -> None:
    def step(*arrays: mx.array) -> tuple[mx.array, ...]:
        return tuple(both(tools.flash_attention, arrays, 0).values())

    length, run = 1024, tools.compile.compile(step) if captured else step
    peak(run, tools, length // 4)  # what MLX sets up once is not counted
    short, long = peak(run, tools, length), peak(run, tools, 2 * length)
    assert short < 4 * 2 * length**2  # the scores of two heads
    assert long < 2.4 * short
