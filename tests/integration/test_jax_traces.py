"""One whole training step over JAX's array API namespace traces under jax.jit and equals the eager one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np
import pytest

from turret.models import DecoderConfig, LanguageModel, MiniConfig, build_model
from turret.optim import Adam, decay_groups
from turret.registry import OpenBackend, use_backend
from turret.spi.array_api import Hooks, required_from
from turret.tensor import Tensor, backward, ops, tensor

DECODER = DecoderConfig(vocabulary=27, context=8, width=16, heads=2, blocks=1, feed_forward=32)
MINI = MiniConfig(vocabulary=27, context=8, width=16, heads=4, kv_heads=2, blocks=1, feed_forward=24)
UNTIED = MiniConfig(vocabulary=27, context=8, width=16, heads=2, kv_heads=1, blocks=2, feed_forward=24, tied_head=False)
RATE, BETAS, EPS = 1e-2, (0.9, 0.99), 1e-3  # the large eps keeps rounding of tiny gradients out of the comparison


@pytest.fixture(scope="module")
def on_jax(make_backend: Callable[..., OpenBackend]) -> Iterator[OpenBackend]:
    """JAX on its CPU device, of which turret knows nothing but the namespace."""
    required = required_from(jax.numpy, hooks=Hooks(synchronize=lambda *arrays: jax.block_until_ready(arrays)))
    with use_backend(make_backend(required, name="jax")) as opened:
        yield opened


class Step:
    """Forward, loss, backward, clip and Adam as a pure function of arrays; the model's own values are put back."""

    def __init__(self, model: LanguageModel, adam: Adam) -> None:
        self.model, self.adam, self.parameters = model, adam, model.parameters()
        self.traced = 0

    def state(self) -> tuple[Any, ...]:
        moments = self.adam._moments
        return tuple(p.value for p in self.parameters), tuple(moments.first), tuple(moments.second)

    def put(self, state: tuple[Any, ...]) -> None:
        for p, value in zip(self.parameters, state[0], strict=True):
            p.replace(value)
        self.adam._moments.first, self.adam._moments.second = list(state[1]), list(state[2])

    def __call__(self, state: Any, ids: Any, targets: Any, rate: Any, c1: Any, c2: Any) -> Any:
        self.traced += 1
        own, backend = self.state(), self.parameters[0].backend
        self.put(state)
        try:
            logits = self.model(Tensor(ids, backend, "int32"))
            loss = ops.cross_entropy(logits, Tensor(targets, backend, "int32"))
            found = backward(loss)
            gradients = [found.native(p) for p in self.adam._parameters]
            made = self.adam.compute(gradients, rate, c1, c2, donate=False)
            order = {id(p): value for p, value in zip(self.adam._parameters, made.params, strict=True)}
            params = tuple(order[id(p)] for p in self.parameters)
            return (params, made.first, made.second), loss.value, made.norm, made.finite
        finally:
            self.put(own)


def inputs(count: int) -> Iterator[tuple[Any, ...]]:
    random = np.random.default_rng(3)
    for t in range(1, count + 1):
        rows = random.integers(0, 27, (4, 9)).astype(np.int32)
        scalars = (RATE / t, 1 - BETAS[0] ** t, 1 - BETAS[1] ** t)
        yield rows[:, :-1], rows[:, 1:], *(np.array(x, np.float32) for x in scalars)


def close(got: Any, want: Any) -> None:
    got, want = jax.tree_util.tree_leaves(got), jax.tree_util.tree_leaves(want)
    assert len(got) == len(want)
    for a, b in zip(got, want, strict=True):
        assert a.dtype == b.dtype
        assert a.shape == b.shape
        np.testing.assert_allclose(np.asarray(a), np.asarray(b), rtol=2e-4, atol=1e-6)


def build(config: Any, page: int | None) -> tuple[LanguageModel, Adam]:
    model = build_model(config, seed=5)
    groups = decay_groups(model.named_parameters(), 0.1)
    return model, Adam(groups, betas=BETAS, eps=EPS, page_elements=page)


CASES = {"decoder": (DECODER, None), "mini": (MINI, None), "untied-paged": (UNTIED, 100)}


@pytest.fixture(scope="module", params=CASES.values(), ids=CASES.keys())
def case(on_jax: OpenBackend, request: pytest.FixtureRequest) -> tuple[Any, int | None, Step, Any]:
    """(config, page size, the step, the compiled step); unoptimized, which compiles in a third of the time."""
    config, page = request.param
    step = Step(*build(config, page))
    return config, page, step, jax.jit(step, compiler_options={"xla_backend_optimization_level": 0})


def test_a_training_step_traces_once_and_equals_the_eager_one(
    case: Any, make_backend: Callable[..., OpenBackend]
) -> None:
    config, page, step, compiled = case
    untouched, state = [p.value for p in step.parameters], step.state()
    with use_backend(make_backend()):
        model, adam = build(config, page)
        for t, (ids, targets, *scalars) in enumerate(inputs(3), start=1):
            state, loss, norm, finite = compiled(state, ids, targets, *scalars)
            want = ops.cross_entropy(model(tensor(ids)), tensor(targets))
            want.backward()
            stats = adam.step(lr=RATE / t)
            assert bool(finite)
            close((loss, norm), (want.numpy(), np.array(stats.gradient_norm, np.float32)))
            close(state[0], [p.numpy() for p in model.parameters()])
            close(state[1:], [np.array(m) for m in (*adam._moments.first, *adam._moments.second)])
    assert step.traced == 1  # rates and corrections are arrays: nothing to trace again for
    assert all(p.value is value for p, value in zip(step.parameters, untouched, strict=True))


def test_a_step_that_is_not_finite_selects_the_old_state_on_the_device(case: Any) -> None:
    _, _, step, compiled = case
    values, first, second = step.state()
    spoiled = ((values[0].at[0, 0].set(np.nan), *values[1:]), first, second)
    after, _, _, finite = compiled(spoiled, *next(iter(inputs(1))))
    assert not bool(finite)
    for got, want in zip(jax.tree_util.tree_leaves(after), jax.tree_util.tree_leaves(spoiled), strict=True):
        assert np.asarray(got).tobytes() == np.asarray(want).tobytes()


@pytest.mark.slow
@pytest.mark.parametrize("config", [DECODER, MINI], ids=["decoder", "mini"])
def test_the_traced_step_equals_the_one_run_operation_by_operation_on_jax(on_jax: OpenBackend, config: Any) -> None:
    step = Step(*build(config, None))
    arrays = [jax.numpy.asarray(a) for a in next(iter(inputs(1)))]
    close(jax.jit(step)(step.state(), *arrays), step(step.state(), *arrays))
