"""float64 is computed in float64 by every slot, so that gradients can be checked by differences."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

TARGETS = np.array([1, 0, 2], np.int32)


@pytest.fixture
def put64(eager_bench: Any, rng: Any) -> Any:
    return lambda *shape: eager_bench.put(rng.standard_normal(shape))


def outputs(tools: Any, put: Any, put64: Any) -> Any:
    x, weight, bias = put64(3, 4), put64(4), put64(4)
    yield from (
        tools.activation.gelu(x, form="erf"),
        tools.activation.gelu_vjp(x, x, form="tanh"),
        tools.activation.silu(x),
    )
    y = tools.softmax.softmax(x)
    yield from (y, tools.softmax.softmax_vjp(x, y), tools.softmax.log_softmax_vjp(x, tools.softmax.log_softmax(x)))
    normed = tools.normalization.layer_norm(x, weight, bias, eps=1e-5)
    yield from tools.normalization.layer_norm_vjp(x, x, weight, normed.mean, normed.rstd)
    out, rstd = tools.normalization.rms_norm(x, weight, eps=1e-5)
    yield from tools.normalization.rms_norm_vjp(out, x, weight, rstd)
    yield from (tools.linear.linear(x, put64(2, 4), put64(2)), *tools.linear.linear_vjp_weight(x, x))
    yield from tools.loss.cross_entropy_grad(x, put(TARGETS), put(np.ones(3, np.float32)), ignore=-1)
    angles = put(np.ones((3, 1), np.float32))
    q, k = put64(1, 3, 4, 2), put64(1, 3, 2, 2)
    yield tools.rope.rope(q, angles, angles, interleaved=True)
    attended, probabilities = tools.causal_attention.attend(q, k, k, scale=0.5, offset=0)
    yield from (attended, *tools.causal_attention.attend_vjp(q, q, k, k, probabilities, scale=0.5))
    made = tools.flash_attention.attend(q, k, k, scale=0.5, offset=0)
    yield from (made.out, *tools.flash_attention.attend_vjp(q, q, k, k, made, scale=0.5, offset=0))
    table, starts = put(np.array([[1, 0]], np.int32)), put(np.array([1], np.int32))
    yield tools.paged_attention.attend(
        put64(1, 1, 4, 2), put64(4, 2, 2), put64(4, 2, 2), table, starts, page=2, scale=1.0
    )
    packed = tools.quantized_linear.pack(put64(4, 4), block=32, scales="dynamic")
    yield tools.quantized_linear.linear(x, packed, bias)


def test_no_slot_narrows(eager_bench: Any, put64: Any) -> None:
    made = list(outputs(eager_bench.tools, eager_bench.put, put64))
    assert {eager_bench.tools.storage.dtype_of(a) for a in made} == {"float64"}


def test_gradients_agree_with_differences_to_ten_digits(
    eager_bench: Any, differences: Any, attention: Any, rng: Any
) -> None:
    q, k, v, dy = (rng.standard_normal((1, 3, heads, 2)) for heads in (4, 2, 2, 4))
    placed = [eager_bench.put(a) for a in (q, k, v)]
    slot = eager_bench.tools.flash_attention
    made = slot.attend(*placed, scale=0.5, offset=0)
    got = slot.attend_vjp(eager_bench.put(dy), *placed, made, scale=0.5, offset=0)
    for gradient, want in zip(got, differences(lambda *xs: attention(*xs, 0.5, 0), [q, k, v], dy), strict=True):
        eager_bench.close(gradient, want, 1e-9)


def test_parameters_are_updated_beside_float32_moments(eager_bench: Any, rng: Any) -> None:
    p, moment = rng.standard_normal(3), eager_bench.put(np.zeros(3, np.float32))
    lr, one = eager_bench.put(np.float32(0.5)), eager_bench.put(np.float32(1))
    made = eager_bench.tools.adam.update(
        [eager_bench.put(p)],
        [eager_bench.put(np.full(3, 2.0))],
        [moment],
        [moment],
        lr=lr,
        correction1=one,
        correction2=one,
        betas=(0.0, 0.0),
        eps=0.0,
        decay=[0.0],
        max_norm=np.inf,
        donate=False,
    )
    eager_bench.close(made.params[0], p - 0.5, 1e-15)
    assert eager_bench.tools.storage.dtype_of(made.first[0]) == "float32"
