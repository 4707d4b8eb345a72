from __future__ import annotations

from typing import Any

import numpy as np
import pytest

Case = tuple[int, int, int, int, int]
CASES = [  # T, S, H, K, offset
    pytest.param((3, 3, 4, 2, 0), id="grouped"),
    pytest.param((2, 5, 2, 1, 3), id="offset"),
    pytest.param((3, 7, 2, 2, 1), id="keys-beyond-the-last-query"),
    pytest.param((1, 1, 1, 1, 0), id="one"),
]


def check(bench: Any, differences: Any, normal: Any, attention: Any, case: Case) -> None:
    t, s, h, kv, offset = case
    slot = bench.tools.causal_attention
    q, k, v, dy = normal(2, t, h, 3), normal(2, s, kv, 3), normal(2, s, kv, 3), normal(2, t, h, 3)
    aq, ak, av = bench.put(q), bench.put(k), bench.put(v)
    out, probabilities = slot.attend(aq, ak, av, scale=0.7, offset=offset)
    bench.close(out, attention(q, k, v, 0.7, offset))
    unseen = np.arange(s) > np.arange(t)[:, None] + offset
    assert not bench.get(probabilities)[:, :, unseen].any()
    assert bench.get(probabilities).sum(axis=-1) == pytest.approx(np.ones((2, h, t)), abs=1e-6)
    got = slot.attend_vjp(bench.put(dy), aq, ak, av, probabilities, scale=0.7)
    wants = differences(lambda *xs: attention(*xs, 0.7, offset), [q, k, v], dy)
    for gradient, want in zip(got, wants, strict=True):
        bench.close(gradient, want)


@pytest.mark.parametrize("case", CASES)
def test_output_and_gradients_follow_the_formula(
    eager_bench: Any, differences: Any, normal: Any, attention: Any, case: Case
) -> None:
    check(eager_bench, differences, normal, attention, case)


def test_grouped_heads_at_an_offset_can_be_traced(
    jax_bench: Any, differences: Any, normal: Any, attention: Any
) -> None:
    check(jax_bench, differences, normal, attention, (2, 4, 4, 2, 1))


def test_what_is_unseen_weighs_exactly_nothing_even_beside_huge_negative_scores(eager_bench: Any) -> None:
    ones = np.ones((1, 2, 1, 1), np.float32)
    k, v = np.array([-1e35, 0], np.float32).reshape(1, 2, 1, 1), np.array([3, 1e30], np.float32).reshape(1, 2, 1, 1)
    out, probabilities = eager_bench.tools.causal_attention.attend(
        eager_bench.put(ones), eager_bench.put(k), eager_bench.put(v), scale=1.0, offset=0
    )
    assert eager_bench.get(probabilities)[0, 0, 0].tolist() == [1, 0]
    assert eager_bench.get(out)[0, 0, 0, 0] == 3


@pytest.mark.parametrize(("b", "t"), [(0, 3), (2, 0)])
def test_no_queries_pass(eager_bench: Any, normal: Any, b: int, t: int) -> None:
    bench, slot = eager_bench, eager_bench.tools.causal_attention
    q, k = bench.put(normal(b, t, 2, 3)), bench.put(normal(b, 3, 1, 3))
    out, probabilities = slot.attend(q, k, k, scale=1.0, offset=0)
    assert bench.get(out).shape == (b, t, 2, 3) and bench.get(probabilities).shape == (b, 2, t, 3)
    shapes = [bench.get(g).shape for g in slot.attend_vjp(q, q, k, k, probabilities, scale=1.0)]
    assert shapes == [(b, t, 2, 3), (b, 3, 1, 3), (b, 3, 1, 3)]


def test_halves_are_attended_in_float32(bench: Any, normal: Any, attention: Any, rounded: Any) -> None:
    for dtype in bench.halves:
        q, k, v = (bench.put(normal(1, 4, 2, 3), dtype) for _ in range(3))
        out, probabilities = bench.tools.causal_attention.attend(q, k, v, scale=0.7, offset=0)
        value, unit = rounded(dtype, attention(bench.get(q), bench.get(k), bench.get(v), 0.7, 0))
        dtype_of = bench.tools.storage.dtype_of
        assert (dtype_of(out), dtype_of(probabilities)) == (dtype, "float32")
        assert (np.abs(bench.get(out) - value) <= unit).all()
        gradients = bench.tools.causal_attention.attend_vjp(out, q, k, v, probabilities, scale=0.7)
        assert {dtype_of(g) for g in gradients} == {dtype}
