from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from turret.conformance.oracle import (
    activation,
    attention,
    elementwise,
    indexing,
    layout,
    linear,
    loss,
    matmul,
    normalization,
    reduction,
    rope,
    softmax,
)
from turret.conformance.oracle.arrays import quiet
from turret.conformance.tracked import Tracked

IDS = np.array([2, 0, 2], np.int32)
Oracle = Callable[..., Any]
CALLS: dict[str, tuple[Oracle, list[tuple[int, ...]]]] = {
    "matmul": (lambda a, b: matmul.matmul(a, b, transpose_b=True), [(2, 3, 4), (2, 5, 4)]),
    "sum": (lambda x: reduction.sum(x, axis=(0, 2)), [(2, 3, 4)]),
    "mean": (lambda x: reduction.mean(x, axis=-1), [(2, 3)]),
    "max": (lambda x: reduction.max(x, axis=0), [(2, 3)]),
    "argmax": (lambda x: reduction.argmax(x, axis=0), [(5, 3)]),
    "transpose": (lambda x: layout.transpose(x, (1, 0)), [(2, 3)]),
    "reshape": (lambda x: layout.reshape(x, (3, 2)), [(2, 3)]),
    "slice": (lambda x: layout.slice(x, (0, 1), (2, 3), step=(1, 2)), [(2, 3)]),
    "concatenate": (lambda a, b: layout.concatenate([a, b], axis=0), [(2, 3), (1, 3)]),
    "pad": (lambda x: layout.pad(x, [(1, 0), (0, 2)]), [(2, 3)]),
    "broadcast_to": (lambda x: layout.broadcast_to(x, (2, 2, 3)), [(2, 3)]),
    "gather_rows": (lambda x: indexing.gather_rows(x, IDS), [(3, 2)]),
    "gather_last": (lambda x: indexing.gather_last(x, IDS), [(3, 4)]),
    "scatter_add_rows": (lambda base, rows: indexing.scatter_add_rows(base, IDS, rows), [(4, 2), (3, 2)]),
    "set_rows": (lambda base, rows: indexing.set_rows(base, IDS, rows), [(4, 2), (3, 2)]),
    "gelu": (lambda x: activation.gelu(x, form="erf"), [(2, 3)]),
    "gelu_tanh": (lambda x: activation.gelu(x, form="tanh"), [(2, 3)]),
    "gelu_vjp": (lambda dy, x: activation.gelu_vjp(dy, x, form="erf"), [(2, 3), (2, 3)]),
    "gelu_tanh_vjp": (lambda dy, x: activation.gelu_vjp(dy, x, form="tanh"), [(2, 3), (2, 3)]),
    "silu": (activation.silu, [(2, 3)]),
    "silu_vjp": (activation.silu_vjp, [(2, 3), (2, 3)]),
    "gated_silu": (activation.gated_silu, [(2, 3), (2, 3)]),
    "gated_silu_vjp": (activation.gated_silu_vjp, [(2, 3)] * 3),
    "softmax": (softmax.softmax, [(2, 3)]),
    "softmax_vjp": (softmax.softmax_vjp, [(2, 3), (2, 3)]),
    "log_softmax": (softmax.log_softmax, [(2, 3)]),
    "log_softmax_vjp": (softmax.log_softmax_vjp, [(2, 3), (2, 3)]),
    "layer_norm": (lambda *x: normalization.layer_norm(*x, eps=1e-5), [(2, 3), (3,), (3,)]),
    "layer_norm_vjp": (normalization.layer_norm_vjp, [(2, 3), (2, 3), (3,), (2, 1), (2, 1)]),
    "rms_norm": (lambda *x: normalization.rms_norm(*x, eps=1e-5), [(2, 3), (3,)]),
    "rms_norm_vjp": (normalization.rms_norm_vjp, [(2, 3), (2, 3), (3,), (2, 1)]),
    "linear": (linear.linear, [(2, 3, 4), (5, 4), (5,)]),
    "linear_of_one_row": (lambda x, weight: linear.linear(x, weight, None), [(4,), (5, 4)]),
    "linear_vjp_input": (linear.linear_vjp_input, [(2, 3, 5), (5, 4)]),
    "linear_vjp_weight": (linear.linear_vjp_weight, [(2, 3, 5), (2, 3, 4)]),
    "cross_entropy": (lambda x: loss.cross_entropy(x, IDS, None, ignore=0), [(3, 4)]),
    "cross_entropy_weighted": (lambda x, w: loss.cross_entropy(x, IDS, w * w, ignore=0), [(3, 4), (3,)]),
    "cross_entropy_grad": (lambda x, w: loss.cross_entropy_grad(x, IDS, w * w, ignore=0), [(3, 4), (3,)]),
    "rope": (lambda *x: rope.rope(*x, interleaved=True), [(1, 3, 2, 4), (3, 2), (3, 2)]),
    "rope_vjp": (lambda *x: rope.rope_vjp(*x, interleaved=False), [(1, 3, 2, 4), (1, 3, 2), (1, 3, 2)]),
    "attend": (lambda *x: attention.attend(*x, scale=0.5, offset=0), [(1, 3, 2, 4), (1, 3, 1, 4), (1, 3, 1, 4)]),
    "attend_vjp": (
        lambda *x: attention.attend_vjp(*x, scale=0.5),
        [(1, 3, 2, 4), (1, 3, 2, 4), (1, 3, 1, 4), (1, 3, 1, 4), (1, 2, 3, 3)],
    ),
    "flash_attend": (
        lambda *x: attention.flash_attend(*x, scale=0.5, offset=0),
        [(1, 3, 2, 4), (1, 3, 1, 4), (1, 3, 1, 4)],
    ),
    "flash_attend_vjp": (
        lambda dy, q, k, v: attention.flash_attend_vjp(
            dy, q, k, v, attention.flash_attend(q, k, v, scale=0.5, offset=0), scale=0.5, offset=0
        ),
        [(1, 3, 2, 4), (1, 3, 2, 4), (1, 3, 1, 4), (1, 3, 1, 4)],
    ),
    **{
        name: (getattr(elementwise, name), [(2, 3), (3,)])
        for name in "add subtract multiply divide maximum minimum equal less less_equal".split()
    },
    **{name: (getattr(elementwise, name), [(2, 3)]) for name in "negative exp tanh erf isfinite".split()},
    "log": (lambda x: elementwise.log(x * x + 1.0), [(2, 3)]),
    "sqrt": (lambda x: elementwise.sqrt(x * x + 1.0), [(2, 3)]),
    "rsqrt": (lambda x: elementwise.rsqrt(x * x + 1.0), [(2, 3)]),
    "where": (lambda a, b: elementwise.where(np.array([True, False, True]), a, b), [(3,), (3,)]),
}


@pytest.mark.parametrize("name", CALLS)
def test_every_oracle_gives_the_same_values_on_arrays_that_carry_an_error_bound(normal: Any, name: str) -> None:
    oracle, shapes = CALLS[name]
    inputs = [normal(*shape) for shape in shapes]
    before = [x.tobytes() for x in inputs]
    wants = oracle(*inputs)
    gots = oracle(*(Tracked(x, np.zeros(x.shape), 2.0**-24) for x in inputs))
    pairs = zip(gots, wants, strict=True) if isinstance(wants, tuple) else [(gots, wants)]
    for got, want in pairs:
        if np.asarray(want).dtype != np.float64:
            np.testing.assert_array_equal(got, want)
            continue
        assert got.value.tolist() == want.tolist(), "computed another way"
        assert np.isfinite(got.error).all() and (got.error >= 0).all() and (got.error < 1e-3).all()
    assert [x.tobytes() for x in inputs] == before, "an input was written"


def test_quiet_silences_only_the_function_it_decorates() -> None:
    @quiet
    def inverse(x: Any) -> Any:
        return 1.0 / x

    zero = np.zeros(1)
    assert inverse(zero) == inverse(zero) == np.inf
    with pytest.raises(RuntimeWarning):
        1.0 / zero
