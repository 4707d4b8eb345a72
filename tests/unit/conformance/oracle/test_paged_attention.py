"""Paged attention against softmax written out number by number, with poison wherever nothing may be read."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from turret.conformance.oracle import paged_attention
from turret.conformance.tracked import Tracked, value_of

PAGE, HEADS, KV_HEADS, SIZE = 3, 4, 2, 5


def by_numbers(q: Any, keys: Any, values: Any, start: int, scale: float) -> Any:
    """One request: q (T, H, d), keys and values (S, K, d) in the order of their positions."""
    out = np.zeros(q.shape)
    for i, head in np.ndindex(*q.shape[:2]):
        shared = head // (HEADS // KV_HEADS)
        scores = [scale * math.fsum(q[i, head] * keys[s, shared]) for s in range(start + i + 1)]
        weights = [math.exp(score - max(scores)) for score in scores]
        for s, weight in enumerate(weights):
            out[i, head] += weight / math.fsum(weights) * values[s, shared]
    return out


class Requests:
    """Ragged requests whose rows lie scattered in pools that are NaN everywhere else."""

    def __init__(self, starts: list[int], count: int) -> None:
        rng = np.random.default_rng(5)
        self.starts, self.count = np.array(starts, np.int32), count
        self.q = rng.normal(size=(len(starts), count, HEADS, SIZE))
        lengths = [start + count for start in starts]
        self.keys, self.values = ([rng.normal(size=(n, KV_HEADS, SIZE)) for n in lengths] for _ in range(2))
        needed = [-(-n // PAGE) for n in lengths]
        ids = iter(rng.permutation(np.arange(1, 1 + sum(needed))))
        self.table = np.zeros((len(starts), max(needed) + 1), np.int32)
        for request, pages in enumerate(needed):
            self.table[request, :pages] = [next(ids) for _ in range(pages)]
        self.k_pages, self.v_pages = (np.full(((1 + sum(needed)) * PAGE, KV_HEADS, SIZE), np.nan) for _ in range(2))
        for request, n in enumerate(lengths):
            for position in range(n):
                row = self.table[request, position // PAGE] * PAGE + position % PAGE
                self.k_pages[row] = self.keys[request][position]
                self.v_pages[row] = self.values[request][position]

    def attend(self, wrap: Any = lambda x: x) -> Any:
        q, k_pages, v_pages = (wrap(x) for x in (self.q, self.k_pages, self.v_pages))
        return paged_attention.attend(q, k_pages, v_pages, self.table, self.starts, page=PAGE, scale=0.4)


@pytest.mark.parametrize(("starts", "count"), [([0], 1), ([0, 0], 7), ([5, 0, 2], 1), ([2, 3, 8], 4)])
def test_each_query_sees_its_own_pages_up_to_itself_and_no_stale_row(starts: list[int], count: int) -> None:
    requests = Requests(starts, count)
    out = requests.attend()
    for request, start in enumerate(starts):
        want = by_numbers(requests.q[request], requests.keys[request], requests.values[request], start, 0.4)
        np.testing.assert_allclose(out[request], want, rtol=1e-13, atol=1e-13)


def test_tracked_arrays_give_the_same_values_and_a_small_finite_bound() -> None:
    requests = Requests([2, 0], 3)
    out = requests.attend(lambda x: Tracked(x, 0.0, 2.0**-24))
    np.testing.assert_array_equal(out.value, requests.attend())
    assert 0 < out.error.max() < 1e-4


def test_no_query_is_no_output() -> None:
    requests = Requests([1], 1)
    empty = requests.q[:, :0]
    out = paged_attention.attend(
        empty, requests.k_pages, requests.v_pages, requests.table, requests.starts, page=PAGE, scale=1.0
    )
    assert out.shape == (1, 0, HEADS, SIZE)


@pytest.mark.parametrize("wrap", [lambda x: x, lambda x: Tracked(x, 0.0, 2.0**-24)], ids=["plain", "tracked"])
def test_append_writes_its_rows_and_leaves_the_pools_it_got(wrap: Any) -> None:
    k_pages, v_pages = np.arange(24.0).reshape(6, 2, 2), -np.arange(24.0).reshape(6, 2, 2)
    k, v = np.full((2, 2, 2), 100.0), np.full((2, 2, 2), 200.0)
    k[1], v[1] = 101, 201
    before = k_pages.copy()
    made = paged_attention.append(
        wrap(k_pages), wrap(v_pages), wrap(k), wrap(v), np.array([5, 2], np.int32), donate=True
    )
    new_k, new_v = (value_of(x) for x in made)
    assert [row[0, 0] for row in new_k] == [0, 4, 101, 12, 16, 100]
    assert [row[0, 0] for row in new_v] == [0, -4, 201, -12, -16, 200]
    np.testing.assert_array_equal(k_pages, before)


def test_appending_nothing_changes_nothing() -> None:
    pool, none = np.ones((4, 1, 2)), np.ones((0, 1, 2))
    for made in paged_attention.append(pool, pool, none, none, np.zeros(0, np.int32)):
        np.testing.assert_array_equal(made, pool)
