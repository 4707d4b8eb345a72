from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

BETAS, EPS, LR = (0.9, 0.99), 1e-8, 0.01
SHAPES = ((3, 2), (5,), ())


def reference(params: Any, grads: Any, first: Any, second: Any, *, step: int, decay: Any, max_norm: float) -> Any:
    """Kingma and Ba 2015, algorithm 1, with the decay of Loshchilov and Hutter 2019, algorithm 2, in float64."""
    norm = math.sqrt(math.fsum(float(g) ** 2 for array in grads for g in np.asarray(array, np.float64).reshape(-1)))
    clip = min(1.0, max_norm / norm) if norm else 1.0
    made = []
    for p, g, m, v, weight_decay in zip(params, grads, first, second, decay, strict=True):
        p, g, m, v = (np.asarray(a, np.float64) for a in (p, g, m, v))
        m = BETAS[0] * m + (1 - BETAS[0]) * (g * clip)
        v = BETAS[1] * v + (1 - BETAS[1]) * (g * clip) ** 2
        m_hat, v_hat = m / (1 - BETAS[0] ** step), v / (1 - BETAS[1] ** step)
        made.append((p - LR * (m_hat / (np.sqrt(v_hat) + EPS) + weight_decay * p), m, v))
    return tuple(zip(*made, strict=True)), norm


class State:
    def __init__(self, bench: Any, normal: Any, shapes: Any = SHAPES, dtype: Any = None) -> None:
        self.bench, self.decay = bench, [0.1] + [0.0] * (len(shapes) - 1)
        self.hosts = [
            [normal(*s) for s in shapes],
            [normal(*s) * np.float32(0.1) for s in shapes],
            [normal(*s) ** 2 for s in shapes],
        ]
        self.placed = [[bench.put(x, dtype if i == 0 else None) for x in hosts] for i, hosts in enumerate(self.hosts)]

    def inputs(self, grads: Any) -> tuple[Any, Any, Any, Any]:
        params, first, second = self.hosts
        return params, grads, first, second

    def update(self, grads: Any, *, step: int = 3, max_norm: float = math.inf, dtype: Any = None) -> Any:
        put = self.bench.put
        scalars = (LR, 1 - BETAS[0] ** step, 1 - BETAS[1] ** step)
        lr, correction1, correction2 = (put(np.array(x, np.float32)) for x in scalars)
        params, first, second = self.placed
        return self.bench.tools.adam.update(
            params,
            [put(g, dtype) for g in grads],
            first,
            second,
            lr=lr,
            correction1=correction1,
            correction2=correction2,
            betas=BETAS,
            eps=EPS,
            decay=self.decay,
            max_norm=max_norm,
            donate=True,
        )

    def check_refused(self, made: Any) -> None:
        assert not self.bench.get(made.finite)
        for got, olds in zip(made[:3], self.placed, strict=True):
            for new, old in zip(got, olds, strict=True):
                assert self.bench.get(new).tobytes() == self.bench.get(old).tobytes()


@pytest.mark.parametrize("max_norm", [math.inf, 1.0, 1e6])
@pytest.mark.parametrize("step", [1, 1000])
def test_a_step_follows_the_papers_equations(eager_bench: Any, normal: Any, max_norm: float, step: int) -> None:
    check_step(eager_bench, normal, max_norm, step)


def test_a_step_can_be_traced(jax_bench: Any, normal: Any) -> None:
    check_step(jax_bench, normal, 1.0, 3)


def check_step(bench: Any, normal: Any, max_norm: float, step: int) -> None:
    state, grads = State(bench, normal), [normal(*s) for s in SHAPES]
    made = state.update(grads, step=step, max_norm=max_norm)
    wants, norm = reference(*state.inputs(grads), step=step, decay=state.decay, max_norm=max_norm)
    for got, want in zip(made[:3], wants, strict=True):
        for a, b in zip(got, want, strict=True):
            bench.close(a, b, 2e-6)
    bench.close(made.norm, norm, 1e-6)
    assert bench.get(made.finite).dtype == bool and bench.get(made.finite)


@pytest.mark.parametrize("scale", [1e30, 1e-30, 1e15, 1e-18])
def test_the_norm_neither_overflows_nor_underflows(eager_bench: Any, normal: Any, scale: float) -> None:
    state, grads = State(eager_bench, normal), [(normal(*s) * scale).astype(np.float32) for s in SHAPES]
    made = state.update(grads, max_norm=1.0)
    wants, norm = reference(*state.inputs(grads), step=3, decay=state.decay, max_norm=1.0)
    assert eager_bench.get(made.finite)
    assert eager_bench.get(made.norm) == pytest.approx(norm, rel=1e-6)
    for got, want in zip(made[:3], wants, strict=True):
        for a, b in zip(got, want, strict=True):
            eager_bench.close(a, b, 2e-6)


def test_zero_gradients_have_the_norm_zero_and_are_a_step(eager_bench: Any, normal: Any) -> None:
    state, grads = State(eager_bench, normal), [np.zeros(s, np.float32) for s in SHAPES]
    for max_norm in (1.0, math.inf):
        made = state.update(grads, max_norm=max_norm)
        wants, _ = reference(*state.inputs(grads), step=3, decay=state.decay, max_norm=max_norm)
        assert eager_bench.get(made.norm) == 0 and eager_bench.get(made.finite)
        eager_bench.close(made.params[0], wants[0][0], 2e-6)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("at", [0, 1, 2])
@pytest.mark.parametrize("max_norm", [1.0, math.inf])
def test_one_bad_gradient_changes_no_bit(eager_bench: Any, normal: Any, bad: float, at: int, max_norm: float) -> None:
    state, grads = State(eager_bench, normal), [normal(*s) for s in SHAPES]
    grads[at] = np.array(grads[at])
    grads[at][(0,) * grads[at].ndim] = bad
    made = state.update(grads, max_norm=max_norm)
    state.check_refused(made)
    norm = eager_bench.get(made.norm)
    assert np.isnan(norm) if np.isnan(bad) else norm == np.inf


def test_a_traced_refusal_changes_no_bit(jax_bench: Any, normal: Any) -> None:
    state, grads = State(jax_bench, normal), [normal(*s) for s in SHAPES]
    grads[1][2] = np.nan
    state.check_refused(state.update(grads, max_norm=1.0))


@pytest.mark.parametrize("moment", [1, 2])
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_result_that_is_not_finite_changes_no_bit(eager_bench: Any, normal: Any, moment: int, bad: float) -> None:
    state = State(eager_bench, normal)
    broken = state.hosts[moment][1].copy()
    broken[0] = bad
    state.placed[moment][1] = eager_bench.put(broken)
    state.check_refused(state.update([normal(*s) for s in SHAPES]))


def test_a_square_that_overflows_without_clipping_changes_no_bit(eager_bench: Any, normal: Any) -> None:
    state = State(eager_bench, normal)
    state.check_refused(state.update([np.full(s, 1e30, np.float32) for s in SHAPES]))


def test_empty_tensors_take_no_part(eager_bench: Any, normal: Any) -> None:
    state = State(eager_bench, normal, shapes=((0, 3), (2,)))
    made = state.update([normal(0, 3), np.array([3, 4], np.float32)])
    assert eager_bench.get(made.norm) == 5 and eager_bench.get(made.finite)
    assert eager_bench.get(made.params[0]).shape == (0, 3)


def test_half_parameters_keep_float32_moments(bench: Any, normal: Any, rounded: Any) -> None:
    for dtype in bench.halves:
        state = State(bench, normal, shapes=((4, 2),), dtype=dtype)
        grads = [normal(4, 2)]
        made = state.update(grads, dtype=dtype)
        narrow = bench.get(bench.put(grads[0], dtype))
        params = [bench.get(p) for p in state.placed[0]]
        wants, _ = reference(
            params, [narrow], state.hosts[1], state.hosts[2], step=3, decay=state.decay, max_norm=math.inf
        )
        dtype_of = bench.tools.storage.dtype_of
        assert [dtype_of(x[0]) for x in made[:3]] == [dtype, "float32", "float32"]
        value, unit = rounded(dtype, wants[0][0])
        assert (np.abs(bench.get(made.params[0]) - value) <= unit).all()
        bench.close(made.first[0], wants[1][0])
