from __future__ import annotations

from typing import Any

import numpy as np
import pytest

PAGE, PAGES, KV, D = 2, 8, 2, 3
TABLE = np.array([[5, 2, 0], [7, 0, 0], [1, 6, 3]], np.int32)


def slots(request: int, length: int) -> list[int]:
    return [int(TABLE[request, i // PAGE]) * PAGE + i % PAGE for i in range(length)]


def check(bench: Any, normal: Any, attention: Any, lengths: tuple[int, ...], t: int, garbage: float) -> None:
    slot, pool = bench.tools.paged_attention, np.full((PAGES * PAGE, KV, D), garbage, np.float32)
    keys, values, q = [normal(n, KV, D) for n in lengths], [normal(n, KV, D) for n in lengths], normal(3, t, 4, D)
    rows = np.array([s for r, n in enumerate(lengths) for s in slots(r, n)], np.int32)
    pools = slot.append(
        bench.put(pool),
        bench.put(pool),
        bench.put(np.concatenate(keys)),
        bench.put(np.concatenate(values)),
        bench.put(rows),
        donate=False,
    )
    starts = bench.put(np.array([n - t for n in lengths], np.int32))
    out = slot.attend(bench.put(q), *pools, bench.put(TABLE), starts, page=PAGE, scale=0.7)
    want = [attention(q[r : r + 1], keys[r][None], values[r][None], 0.7, n - t) for r, n in enumerate(lengths)]
    bench.close(out, np.concatenate(want))


@pytest.mark.parametrize(("lengths", "t"), [((4, 1, 6), 1), ((3, 2, 5), 2)])
@pytest.mark.parametrize("garbage", [np.nan, np.inf, 1e38])
def test_pages_in_any_order_attend_like_contiguous_keys(
    eager_bench: Any, normal: Any, attention: Any, lengths: tuple[int, ...], t: int, garbage: float
) -> None:
    check(eager_bench, normal, attention, lengths, t, garbage)


def test_pages_can_be_traced(jax_bench: Any, normal: Any, attention: Any) -> None:
    check(jax_bench, normal, attention, (3, 2, 5), 2, np.nan)


def test_append_writes_only_its_rows(bench: Any, normal: Any) -> None:
    k_pool, v_pool, k, v = normal(8, KV, D), normal(8, KV, D), normal(2, KV, D), normal(2, KV, D)
    got = bench.tools.paged_attention.append(
        bench.put(k_pool),
        bench.put(v_pool),
        bench.put(k),
        bench.put(v),
        bench.put(np.array([5, 2], np.int32)),
        donate=False,
    )
    for pool, rows, made in ((k_pool, k, got[0]), (v_pool, v, got[1])):
        want = pool.copy()
        want[[5, 2]] = rows
        bench.same(made, want)


def test_padding_may_point_at_page_zero_more_than_once(eager_bench: Any, normal: Any) -> None:
    pool, rows = normal(8, KV, D), normal(3, KV, D)
    ids = eager_bench.put(np.array([0, 4, 0], np.int32))
    made, _ = eager_bench.tools.paged_attention.append(
        *(eager_bench.put(a) for a in (pool, pool, rows, rows)), ids, donate=False
    )
    got = eager_bench.get(made)
    assert np.array_equal(got[1:4], pool[1:4]) and np.array_equal(got[4], rows[1])
    assert any(np.array_equal(got[0], row) for row in (rows[0], rows[2]))


def test_no_requests_pass(eager_bench: Any, normal: Any) -> None:
    pool, table = eager_bench.put(normal(8, KV, D)), eager_bench.put(np.zeros((0, 3), np.int32))
    q, starts = eager_bench.put(normal(0, 1, 4, D)), eager_bench.put(np.zeros(0, np.int32))
    out = eager_bench.tools.paged_attention.attend(q, pool, pool, table, starts, page=PAGE, scale=1.0)
    assert eager_bench.get(out).shape == (0, 1, 4, D)


def test_halves_are_attended_in_float32(bench: Any, normal: Any, attention: Any, rounded: Any) -> None:
    for dtype in bench.halves:
        pool, q = bench.put(normal(4, KV, D), dtype), bench.put(normal(1, 1, 4, D), dtype)
        table, starts = bench.put(np.array([[1, 0]], np.int32)), bench.put(np.array([1], np.int32))
        out = bench.tools.paged_attention.attend(q, pool, pool, table, starts, page=PAGE, scale=0.7)
        rows = bench.get(pool)[None, 2:4]
        value, unit = rounded(dtype, attention(bench.get(q), rows, rows, 0.7, 1))
        assert bench.tools.storage.dtype_of(out) == dtype
        assert (np.abs(bench.get(out) - value) <= unit).all()
