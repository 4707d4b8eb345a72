from __future__ import annotations

from typing import Any

import numpy as np
import pytest

EPS = 1e-5


def layer_norm(x: Any, weight: Any, bias: Any) -> Any:
    mean = x.mean(axis=-1, keepdims=True)
    return (x - mean) / np.sqrt(x.var(axis=-1, keepdims=True) + EPS) * weight + bias


def rms_norm(x: Any, weight: Any) -> Any:
    return x / np.sqrt((x**2).mean(axis=-1, keepdims=True) + EPS) * weight


def test_layer_norm_and_its_gradients_follow_the_formula(bench: Any, differences: Any, normal: Any) -> None:
    slot = bench.tools.normalization
    x, weight, bias, dy = normal(2, 3, 5), normal(5), normal(5), normal(2, 3, 5)
    ax, aw, ab, ady = (bench.put(a) for a in (x, weight, bias, dy))
    made = slot.layer_norm(ax, aw, ab, eps=EPS)
    wide = x.astype(np.float64)
    bench.close(made.out, layer_norm(wide, weight, bias))
    bench.close(made.mean, wide.mean(axis=-1, keepdims=True))
    bench.close(made.rstd, 1 / np.sqrt(wide.var(axis=-1, keepdims=True) + EPS))
    got = slot.layer_norm_vjp(ady, ax, aw, made.mean, made.rstd)
    for gradient, want in zip(got, differences(layer_norm, [x, weight, bias], dy), strict=True):
        bench.close(gradient, want)


def test_rms_norm_and_its_gradients_follow_the_formula(bench: Any, differences: Any, normal: Any) -> None:
    slot = bench.tools.normalization
    x, weight, dy = normal(2, 3, 5), normal(5), normal(2, 3, 5)
    ax, aw, ady = bench.put(x), bench.put(weight), bench.put(dy)
    out, rstd = slot.rms_norm(ax, aw, eps=EPS)
    bench.close(out, rms_norm(x.astype(np.float64), weight))
    bench.close(rstd, 1 / np.sqrt((x.astype(np.float64) ** 2).mean(axis=-1, keepdims=True) + EPS))
    got = slot.rms_norm_vjp(ady, ax, aw, rstd)
    for gradient, want in zip(got, differences(rms_norm, [x, weight], dy), strict=True):
        bench.close(gradient, want)


def test_a_large_mean_does_not_swallow_the_variance(eager_bench: Any) -> None:
    x = np.array([[1000.0, 1001.0, 1002.0, 1003.0]], np.float32)
    ones, zeros = eager_bench.put(np.ones(4, np.float32)), eager_bench.put(np.zeros(4, np.float32))
    out = eager_bench.tools.normalization.layer_norm(eager_bench.put(x), ones, zeros, eps=EPS).out
    eager_bench.close(out, layer_norm(x.astype(np.float64), 1, 0))


def test_constant_rows_give_the_bias(eager_bench: Any) -> None:
    ones, bias = eager_bench.put(np.ones(3, np.float32)), np.array([1, 2, 3], np.float32)
    made = eager_bench.tools.normalization.layer_norm(
        eager_bench.put(np.full((2, 3), 7, np.float32)), ones, eager_bench.put(bias), eps=EPS
    )
    assert eager_bench.get(made.out).tolist() == [[1, 2, 3]] * 2
    out, _ = eager_bench.tools.normalization.rms_norm(eager_bench.put(np.zeros((2, 3), np.float32)), ones, eps=EPS)
    assert not eager_bench.get(out).any()


@pytest.mark.parametrize("shape", [(1, 63), (2, 65), (0, 4), (6,)])
def test_gradients_have_the_shapes_of_their_inputs(eager_bench: Any, normal: Any, shape: tuple[int, ...]) -> None:
    slot, x, weight = (
        eager_bench.tools.normalization,
        eager_bench.put(normal(*shape)),
        eager_bench.put(np.ones(shape[-1], np.float32)),
    )
    made = slot.layer_norm(x, weight, weight, eps=EPS)
    assert eager_bench.get(made.mean).shape == eager_bench.get(made.rstd).shape == (*shape[:-1], 1)
    shapes = [eager_bench.get(g).shape for g in slot.layer_norm_vjp(x, x, weight, made.mean, made.rstd)]
    assert shapes == [shape, shape[-1:], shape[-1:]]


def test_halves_are_normalized_in_float32(bench: Any, rounded: Any) -> None:
    slot = bench.tools.normalization
    for dtype in bench.halves:
        x = bench.put(np.linspace(200, 400, 40, dtype=np.float32).reshape(2, 20), dtype)  # squares leave float16
        ones, zeros = bench.put(np.ones(20, np.float32), dtype), bench.put(np.zeros(20, np.float32), dtype)
        made = slot.layer_norm(x, ones, zeros, eps=EPS)
        out, rstd = slot.rms_norm(x, ones, eps=EPS)
        truth = bench.get(x).astype(np.float64)
        for got, want in ((made.out, layer_norm(truth, 1, 0)), (out, rms_norm(truth, 1))):
            value, unit = rounded(dtype, want)
            assert (np.abs(bench.get(got) - value) <= unit).all()
        dtype_of = bench.tools.storage.dtype_of
        assert {dtype_of(a) for a in (made.mean, made.rstd, rstd)} == {"float32"}
        gradients = (*slot.layer_norm_vjp(x, x, ones, made.mean, made.rstd), *slot.rms_norm_vjp(x, x, ones, rstd))
        assert {dtype_of(a) for a in (made.out, out, *gradients)} == {dtype}
