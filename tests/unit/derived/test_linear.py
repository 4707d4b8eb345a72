from __future__ import annotations

from typing import Any

import numpy as np
import pytest


@pytest.mark.parametrize("leading", [(2, 3), ()])
def test_linear_and_its_gradients_follow_the_formula(
    bench: Any, differences: Any, normal: Any, leading: tuple[int, ...]
) -> None:
    slot = bench.tools.linear
    x, weight, bias, dy = normal(*leading, 4), normal(3, 4), normal(3), normal(*leading, 3)
    ax, aw, ab, ady = (bench.put(a) for a in (x, weight, bias, dy))
    wide = x.astype(np.float64) @ weight.T.astype(np.float64)
    bench.close(slot.linear(ax, aw, ab), wide + bias)
    bench.close(slot.linear(ax, aw, None), wide)
    wants = differences(lambda a, w, b: a @ w.T + b, [x, weight, bias], dy)
    got = (slot.linear_vjp_input(ady, aw), *slot.linear_vjp_weight(ady, ax))
    for gradient, want in zip(got, wants, strict=True):
        bench.close(gradient, want)


def test_halves_sum_in_float32(bench: Any) -> None:
    for dtype in bench.halves:
        x = bench.put(np.full((2, 4096), 1, np.float32), dtype)  # 4096 ones lose count in either half
        weight, bias = bench.put(np.full((1, 4096), 1, np.float32), dtype), bench.put(np.zeros(1, np.float32), dtype)
        out = bench.tools.linear.linear(x, weight, bias)
        assert bench.tools.storage.dtype_of(out) == dtype
        assert bench.get(out).tolist() == [[4096], [4096]]
        column = bench.put(np.ones((4096, 1), np.float32), dtype)
        dweight, dbias = bench.tools.linear.linear_vjp_weight(column, column)
        assert bench.get(dweight).tolist() == [[4096]] and bench.get(dbias).tolist() == [4096]


@pytest.mark.parametrize("shape", [(0, 4), (2, 0, 4), (1, 1)])
def test_no_rows_give_zero_weight_gradients(eager_bench: Any, normal: Any, shape: tuple[int, ...]) -> None:
    slot, x, dy = eager_bench.tools.linear, normal(*shape), normal(*shape[:-1], 3)
    weight = normal(3, shape[-1])
    eager_bench.close(slot.linear(eager_bench.put(x), eager_bench.put(weight), None), x @ weight.T)
    dweight, dbias = slot.linear_vjp_weight(eager_bench.put(dy), eager_bench.put(x))
    eager_bench.close(dweight, dy.reshape(-1, 3).T @ x.reshape(-1, shape[-1]))
    eager_bench.close(dbias, dy.reshape(-1, 3).sum(axis=0))
