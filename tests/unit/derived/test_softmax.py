from __future__ import annotations

from typing import Any

import numpy as np
import pytest


def softmax(x: Any) -> Any:
    weights = np.exp(x - x.max(axis=-1, keepdims=True))
    return weights / weights.sum(axis=-1, keepdims=True)


def log_softmax(x: Any) -> Any:
    return x - np.log(np.exp(x).sum(axis=-1, keepdims=True))


def test_softmax_and_its_gradient_follow_the_formula(bench: Any, differences: Any, normal: Any) -> None:
    slot, x, dy = bench.tools.softmax, normal(3, 5) * 4, normal(3, 5)
    y = slot.softmax(bench.put(x))
    bench.close(y, softmax(x.astype(np.float64)))
    bench.close(slot.softmax_vjp(bench.put(dy), y), differences(softmax, [x], dy)[0])


def test_log_softmax_and_its_gradient_follow_the_formula(bench: Any, differences: Any, normal: Any) -> None:
    slot, x, dy = bench.tools.softmax, normal(3, 5) * 4, normal(3, 5)
    y = slot.log_softmax(bench.put(x))
    bench.close(y, log_softmax(x.astype(np.float64)))
    bench.close(slot.log_softmax_vjp(bench.put(dy), y), differences(log_softmax, [x], dy)[0])


@pytest.mark.parametrize("shape", [(2, 1), (2, 63), (65,), (0, 4), (2, 2, 3)])
def test_rows_of_any_length_sum_to_one(eager_bench: Any, normal: Any, shape: tuple[int, ...]) -> None:
    slot, x = eager_bench.tools.softmax, normal(*shape)
    total = eager_bench.get(slot.softmax(eager_bench.put(x))).sum(axis=-1)
    assert total == pytest.approx(np.ones(shape[:-1]), abs=1e-6)
    assert np.exp(eager_bench.get(slot.log_softmax(eager_bench.put(x)))).sum(axis=-1) == pytest.approx(
        np.ones(shape[:-1]), abs=1e-6
    )


def test_large_values_do_not_overflow(bench: Any) -> None:
    x = np.array([[1e30, 0, -1e30], [3e38, -3e38, 3e38], [-1e4, -1e4, -np.inf], [88, 89, 90]], np.float32)
    out = bench.get(bench.tools.softmax.softmax(bench.put(x)))
    assert out[0].tolist() == [1, 0, 0] and out[1].tolist() == [0.5, 0, 0.5] and out[2].tolist() == [0.5, 0.5, 0]
    assert np.isfinite(bench.get(bench.tools.softmax.log_softmax(bench.put(x[3:])))).all()


def test_an_undefined_row_does_not_raise_or_reach_its_neighbours(eager_bench: Any) -> None:
    x = np.array([[np.nan, 0], [np.inf, 0], [-np.inf, -np.inf], [0, 0]], np.float32)
    for slot in (eager_bench.tools.softmax.softmax, eager_bench.tools.softmax.log_softmax):
        assert np.isfinite(eager_bench.get(slot(eager_bench.put(x)))[3]).all()


def test_halves_are_computed_in_float32_and_rounded_once(bench: Any, rounded: Any) -> None:
    for dtype in bench.halves:
        x = bench.put(np.linspace(-3, 3, 300, dtype=np.float32), dtype)
        for form, oracle in ((bench.tools.softmax.softmax, softmax), (bench.tools.softmax.log_softmax, log_softmax)):
            got = form(x)
            value, unit = rounded(dtype, oracle(bench.get(x).astype(np.float64)))
            assert bench.tools.storage.dtype_of(got) == dtype
            assert (np.abs(bench.get(got) - value) <= unit).all()
