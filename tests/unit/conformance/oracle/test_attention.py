from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from turret.conformance.oracle import attention as oracle

GEOMETRIES = [  # (B, T, S, H, K, d), offset
    ((1, 1, 1, 1, 1, 1), 0),
    ((2, 3, 3, 4, 2, 3), 0),
    ((1, 2, 5, 2, 2, 2), 3),
    ((1, 4, 2, 3, 1, 2), 0),
    ((1, 2, 6, 2, 1, 2), 1),
]


def drawn(normal: Any, b: int, t: int, s: int, h: int, kv: int, d: int) -> tuple[Any, Any, Any]:
    return normal(b, t, h, d), normal(b, s, kv, d), normal(b, s, kv, d)


def one_query_at_a_time(q: Any, k: Any, v: Any, scale: float, offset: int) -> tuple[Any, Any]:
    (batch, length, heads, _), (_, keys, kv, _) = q.shape, k.shape
    out, probabilities = np.zeros(q.shape), np.zeros((batch, heads, length, keys))
    for b, i, h in np.ndindex(batch, length, heads):
        seen = min(offset + i + 1, keys)
        weights = [math.exp(scale * float(q[b, i, h] @ k[b, j, h * kv // heads])) for j in range(seen)]
        for j, weight in enumerate(weights):
            probabilities[b, h, i, j] = weight / sum(weights)
            out[b, i, h] += weight / sum(weights) * v[b, j, h * kv // heads]
    return out, probabilities


def test_two_positions_worked_by_hand() -> None:
    q, k = np.full((1, 2, 1, 1), math.log(3.0)), np.array([0.0, 2.0]).reshape(1, 2, 1, 1)
    v = np.array([8.0, 16.0]).reshape(1, 2, 1, 1)
    out, probabilities = oracle.attend(q, k, v, scale=0.5, offset=0)
    assert probabilities == pytest.approx(np.array([[[[1, 0], [0.25, 0.75]]]]), rel=1e-14)
    assert out.reshape(2) == pytest.approx([8, 14], rel=1e-14)


@pytest.mark.parametrize(("sizes", "offset"), GEOMETRIES)
def test_both_forms_agree_with_one_query_at_a_time(normal: Any, sizes: Any, offset: int) -> None:
    q, k, v = drawn(normal, *sizes)
    out, probabilities = one_query_at_a_time(q, k, v, 0.7, offset)
    got, shares = oracle.attend(q, k, v, scale=0.7, offset=offset)
    assert got == pytest.approx(out, rel=1e-12) and shares == pytest.approx(probabilities, rel=1e-12)
    assert oracle.flash_attend(q, k, v, scale=0.7, offset=offset)[0] == pytest.approx(out, rel=1e-12)


def test_row_statistics_are_those_of_the_scaled_scores_that_are_seen() -> None:
    q, k = np.ones((1, 2, 1, 1)), np.array([1.0, -2.0, 50.0]).reshape(1, 3, 1, 1)
    _, row_max, row_sum = oracle.flash_attend(q, k, k, scale=2.0, offset=0)
    assert row_max.tolist() == [[[2, 2]]]
    assert row_sum == pytest.approx(np.array([[[1, 1 + math.exp(-6)]]]), rel=1e-15)


@pytest.mark.parametrize(("sizes", "offset"), GEOMETRIES)
def test_gradients_of_both_forms_follow_differences(
    normal: Any, follows_differences: Any, sizes: Any, offset: int
) -> None:
    q, k, v = drawn(normal, *sizes)
    dy = normal(*q.shape)
    _, probabilities = oracle.attend(q, k, v, scale=0.7, offset=offset)
    gradients = oracle.attend_vjp(dy, q, k, v, probabilities, scale=0.7)
    follows_differences(lambda *x: oracle.attend(*x, scale=0.7, offset=offset)[0], [q, k, v], dy, gradients)
    saved = oracle.flash_attend(q, k, v, scale=0.7, offset=offset)
    again = oracle.flash_attend_vjp(dy, q, k, v, saved, scale=0.7, offset=offset)
    for one, other in zip(again, gradients, strict=True):
        assert one == pytest.approx(other, rel=1e-12, abs=1e-14)


def test_unseen_keys_weigh_exactly_nothing_however_large_their_scores() -> None:
    q, k, v = np.ones((1, 1, 1, 1)), np.array([0.0, 1e30]).reshape(1, 2, 1, 1), np.ones((1, 2, 1, 1))
    out, probabilities = oracle.attend(q, k, v, scale=1.0, offset=0)
    assert probabilities.tolist() == [[[[1, 0]]]] and out.tolist() == [[[[1]]]]
    saved = oracle.flash_attend(q, k, v, scale=1.0, offset=0)
    dq, dk, dv = oracle.flash_attend_vjp(q, q, k, v, saved, scale=1.0, offset=0)
    assert not dq.any() and not dk.any() and dv.reshape(2).tolist() == [1, 0]


def test_no_queries_give_an_empty_result_and_no_gradient() -> None:
    q, k = np.zeros((1, 0, 2, 3)), np.ones((1, 2, 1, 3))
    out, probabilities = oracle.attend(q, k, k, scale=1.0, offset=0)
    assert out.shape == (1, 0, 2, 3) and probabilities.shape == (1, 2, 0, 2)
    dq, dk, dv = oracle.attend_vjp(q, q, k, k, probabilities, scale=1.0)
    assert dq.shape == q.shape and not dk.any() and not dv.any()
