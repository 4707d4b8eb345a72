from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from turret.derived import flash_attention

Case = tuple[int, int, int, int, int]
CASES = [  # T, S, H, K, offset
    pytest.param((5, 5, 4, 2, 0), id="blocks-and-a-tail"),
    pytest.param((4, 9, 2, 1, 5), id="offset"),
    pytest.param((3, 7, 2, 2, 1), id="keys-beyond-the-last-query"),
    pytest.param((1, 1, 1, 1, 0), id="one"),
]


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flash_attention, "ROWS", 2)


def check(bench: Any, differences: Any, normal: Any, attention: Any, case: Case) -> None:
    t, s, h, kv, offset = case
    slot = bench.tools.flash_attention
    q, k, v, dy = normal(2, t, h, 3), normal(2, s, kv, 3), normal(2, s, kv, 3), normal(2, t, h, 3)
    aq, ak, av = bench.put(q), bench.put(k), bench.put(v)
    made = slot.attend(aq, ak, av, scale=0.7, offset=offset)
    bench.close(made.out, attention(q, k, v, 0.7, offset))
    scores = 0.7 * np.einsum("bthd,bshd->bhts", q.astype(np.float64), np.repeat(k, h // kv, axis=2))
    scores[:, :, np.arange(s) > np.arange(t)[:, None] + offset] = -np.inf
    bench.close(made.row_max, scores.max(axis=-1))
    bench.close(made.row_sum, np.exp(scores - scores.max(axis=-1, keepdims=True)).sum(axis=-1))
    got = slot.attend_vjp(bench.put(dy), aq, ak, av, made, scale=0.7, offset=offset)
    for gradient, want in zip(got, differences(lambda *xs: attention(*xs, 0.7, offset), [q, k, v], dy), strict=True):
        bench.close(gradient, want)


@pytest.mark.parametrize("case", CASES)
def test_output_statistics_and_gradients_follow_the_formula(
    eager_bench: Any, differences: Any, normal: Any, attention: Any, case: Case
) -> None:
    check(eager_bench, differences, normal, attention, case)


def test_blocks_of_unequal_length_can_be_traced(jax_bench: Any, differences: Any, normal: Any, attention: Any) -> None:
    check(jax_bench, differences, normal, attention, (3, 4, 2, 1, 1))


@pytest.mark.parametrize(("b", "t"), [(0, 3), (2, 0)])
def test_no_queries_pass(eager_bench: Any, normal: Any, b: int, t: int) -> None:
    bench, slot = eager_bench, eager_bench.tools.flash_attention
    q, k = bench.put(normal(b, t, 2, 3)), bench.put(normal(b, 3, 1, 3))
    made = slot.attend(q, k, k, scale=1.0, offset=0)
    assert bench.get(made.out).shape == (b, t, 2, 3) and bench.get(made.row_max).shape == (b, 2, t)
    shapes = [bench.get(g).shape for g in slot.attend_vjp(q, q, k, k, made, scale=1.0, offset=0)]
    assert shapes == [(b, t, 2, 3), (b, 3, 1, 3), (b, 3, 1, 3)]


def test_scores_above_the_diagonal_cannot_overflow_the_gradient(eager_bench: Any) -> None:
    bench, shape = eager_bench, (1, 2, 1, 1)
    q, k = np.array([1, 1], np.float32).reshape(shape), np.array([0, 1e4], np.float32).reshape(shape)
    made = bench.tools.flash_attention.attend(bench.put(q), bench.put(k), bench.put(k), scale=1.0, offset=0)
    got = bench.tools.flash_attention.attend_vjp(
        bench.put(q), bench.put(q), bench.put(k), bench.put(k), made, scale=1.0, offset=0
    )
    assert all(np.isfinite(bench.get(g)).all() for g in got)


def test_gradients_of_halves_add_up_over_blocks_in_float32(eager_bench: Any) -> None:
    bench = eager_bench
    for dtype in bench.halves:
        shape, tokens = (1, 8, 1, 1), 8
        zeros, ones = bench.put(np.zeros(shape, np.float32), dtype), bench.put(np.ones(shape, np.float32), dtype)
        made = bench.tools.flash_attention.attend(zeros, zeros, ones, scale=1.0, offset=0)
        _, _, dv = bench.tools.flash_attention.attend_vjp(ones, zeros, zeros, ones, made, scale=1.0, offset=0)
        want = [sum(1 / (i + 1) for i in range(j, tokens)) for j in range(tokens)]
        exact = np.asarray(want, np.float32).astype(np.float16)
        assert bench.tools.storage.dtype_of(dv) == dtype
        assert np.array_equal(bench.get(dv).reshape(-1), exact)
