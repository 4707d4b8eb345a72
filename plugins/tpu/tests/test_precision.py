"""Products in the precision that `accumulation` reports."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from turret_tpu.backend import TpuBackend
from turret_tpu.library import jax


def products(backend: TpuBackend) -> dict[str, tuple[Callable[..., Any], list[tuple[int, ...]]]]:
    """Every slot method that multiplies matrices, with the shapes of its operands."""
    table = backend.capabilities()
    linear, attention = table.linear, table.causal_attention
    assert linear is not None
    assert attention is not None
    heads, p = (2, 5, 4, 8), (2, 4, 5, 5)
    few = (2, 5, 2, 8)
    return {
        "matmul": (table.required.matmul.matmul, [(3, 4), (4, 5)]),
        "linear": (linear.linear, [(2, 3, 4), (5, 4), (5,)]),
        "linear_vjp_input": (linear.linear_vjp_input, [(2, 3, 5), (5, 4)]),
        "linear_vjp_weight": (linear.linear_vjp_weight, [(2, 3, 5), (2, 3, 4)]),
        "attend": (lambda *x: attention.attend(*x, scale=0.5, offset=0), [heads, few, few]),
        "attend_vjp": (lambda *x: attention.attend_vjp(*x, scale=0.5), [heads, heads, few, few, p]),
    }


NAMES = sorted(products(TpuBackend("cpu")))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", NAMES)
def test_every_product_asks_for_full_precision_and_float32_sums(backend: TpuBackend, name: str, dtype: Any) -> None:
    call, shapes = products(backend)[name]
    full = backend.capabilities().required.storage.full
    probabilities = name == "attend_vjp"  # float32 whatever the dtype of the others
    dtypes = [dtype] * (len(shapes) - probabilities) + ["float32"] * probabilities
    operands = [full(shape, 1.0, dtype=each) for shape, each in zip(shapes, dtypes, strict=True)]
    lines = [line for line in jax.jit(call).lower(*operands).as_text().splitlines() if "stablehlo.dot_general" in line]
    assert lines
    for line in lines:
        assert "precision = [HIGHEST, HIGHEST]" in line
        assert line.rstrip().endswith("f32>")


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_a_long_sum_of_products_is_as_exact_as_accumulation_says(backend: TpuBackend, dtype: Any) -> None:
    required = backend.capabilities().required
    assert required.matmul.accumulation(dtype) == "float32"
    ones = required.storage.full((1, 5000), 1.0, dtype=dtype)  # a sum in halves would stop at 2048 or 256
    total = required.storage.to_host(required.matmul.matmul(ones, ones, transpose_b=True))
    assert abs(float(total[0, 0]) - 5000) <= 16


def test_float32_products_hold_24_bits(backend: TpuBackend, draw: np.random.Generator) -> None:
    required = backend.capabilities().required
    a, b = (draw.standard_normal((64, 64)).astype(np.float32) for _ in range(2))
    got = required.storage.to_host(required.matmul.matmul(*map(required.storage.from_host, (a, b))))
    want = a.astype(np.float64) @ b.astype(np.float64)
    assert np.abs(got - want).max() < 1e-5
