"""Adam against the papers' equations in float64, its limits, and its all-or-nothing promise."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from turret.nn import Init, LayerNorm, Linear, Module
from turret.optim import Adam, ParameterGroup, decay_groups
from turret.registry import OpenBackend, use_backend
from turret.spi import BackendMismatch, ConfigError, DTypeError, GraphError, NonFiniteError, ShapeError
from turret.tensor import Gradients, Parameter, Tensor, backward, tensor

Array = npt.NDArray[Any]
Make = Callable[..., OpenBackend]
SHAPES: dict[str, tuple[int, ...]] = {"table": (7, 5), "weight": (4, 5, 3), "bias": (9,), "gate": ()}


def draw(seed: int, scale: float = 1.0) -> dict[str, Array]:
    random = np.random.default_rng(seed)
    return {name: (random.normal(size=shape) * scale).astype(np.float32) for name, shape in SHAPES.items()}


def parameters(seed: int = 0) -> dict[str, Parameter]:
    return {name: Parameter(np.asarray(value)) for name, value in draw(seed).items()}


def give(params: dict[str, Parameter], gradients: dict[str, Array]) -> None:
    for name, p in params.items():
        p.grad = tensor(np.asarray(gradients[name]))


def snapshot(params: dict[str, Parameter], adam: Adam) -> dict[str, bytes]:
    return {
        **{name: p.numpy().tobytes() for name, p in params.items()},
        **{name: value.tobytes() for name, value in adam.state_dict().items()},
        "steps": str(adam.steps).encode(),
    }


class Oracle:
    """Kingma and Ba 2015, algorithm 1, in float64, after clipping all gradients by their common norm; decay apart."""

    def __init__(self, start: dict[str, Array], lr: float, b1: float, b2: float, eps: float, max_norm: float) -> None:
        self.theta = {n: v.astype(np.float64) for n, v in start.items()}
        self.m = {n: np.zeros(v.shape) for n, v in start.items()}
        self.v = {n: np.zeros(v.shape) for n, v in start.items()}
        self.lr, self.b1, self.b2, self.eps, self.max_norm, self.t = lr, b1, b2, eps, max_norm, 0

    def step(self, gradients: dict[str, Array], decay: dict[str, float], lr: float | None = None) -> float:
        self.t += 1
        lr = self.lr if lr is None else lr
        wide = {n: g.astype(np.float64) for n, g in gradients.items()}
        norm = math.sqrt(sum(float((g**2).sum()) for g in wide.values()))
        for n, g in wide.items():
            g = g * min(1.0, self.max_norm / norm) if norm else g
            self.m[n] = self.b1 * self.m[n] + (1 - self.b1) * g
            self.v[n] = self.b2 * self.v[n] + (1 - self.b2) * g**2
            m_hat, v_hat = self.m[n] / (1 - self.b1**self.t), self.v[n] / (1 - self.b2**self.t)
            self.theta[n] -= lr * (m_hat / (np.sqrt(v_hat) + self.eps) + decay.get(n, 0.0) * self.theta[n])
        return norm


@pytest.mark.parametrize("page", [None, 1, 7, 64, 4096])
@pytest.mark.parametrize("max_norm", [1.0, 1e6, None])
@pytest.mark.parametrize("decay", [0.0, 0.1])
def test_steps_follow_the_equations(
    backend: OpenBackend, page: int | None, max_norm: float | None, decay: float
) -> None:
    params = parameters()
    groups = decay_groups(params.items(), decay)
    adam = Adam(groups, lr=0.01, betas=(0.8, 0.95), eps=1e-6, max_norm=max_norm, page_elements=page)
    oracle = Oracle(draw(0), 0.01, 0.8, 0.95, 1e-6, math.inf if max_norm is None else max_norm)
    for t in range(1, 7):
        gradients, rate = draw(t, scale=3.0 / t), 0.02 / t
        give(params, gradients)
        stats = adam.step(lr=rate)
        norm = oracle.step(gradients, {"table": decay, "weight": decay}, rate)
        assert stats.step == adam.steps == t
        assert stats.gradient_norm == pytest.approx(norm, rel=1e-5)
        assert stats.clip_scale == pytest.approx(min(1.0, (max_norm or math.inf) / norm), rel=1e-5)
        assert all(p.grad is None for p in params.values())
    for name, p in params.items():
        assert p.shape == SHAPES[name]
        assert p.version == 6
        np.testing.assert_allclose(p.numpy(), oracle.theta[name], rtol=2e-5, atol=2e-6)
        np.testing.assert_allclose(adam.state_dict()[f"first.{name}"], oracle.m[name], rtol=2e-5, atol=1e-6)
        np.testing.assert_allclose(adam.state_dict()[f"second.{name}"], oracle.v[name], rtol=2e-5, atol=1e-6)


def test_the_first_step_moves_by_the_learning_rate_against_the_sign(backend: OpenBackend) -> None:
    p = Parameter(np.array([1.0, 1.0, 1.0], np.float32))
    adam = Adam([("p", p)], lr=0.125, eps=1e-12, max_norm=None)
    p.grad = tensor([4.0, -0.001, 0.0])
    adam.step()
    np.testing.assert_allclose(p.numpy(), [0.875, 1.125, 1.0], rtol=1e-6)
    state = adam.state_dict()
    np.testing.assert_allclose(state["first.p"], [0.4, -0.0001, 0], rtol=1e-5)
    np.testing.assert_allclose(state["second.p"], [0.016, 1e-9, 0], rtol=1e-4)


def test_decay_is_decoupled_from_the_gradient(backend: OpenBackend) -> None:
    p = Parameter(np.array([2.0], np.float32))
    adam = Adam([ParameterGroup(parameters=(("p", p),), weight_decay=0.5)], lr=0.1)
    p.grad = tensor([0.0])
    adam.step()
    assert p.numpy() == pytest.approx(2.0 - 0.1 * 0.5 * 2.0)
    assert adam.state_dict()["first.p"].tolist() == [0.0]


def test_norms_and_biases_do_not_decay(plain: OpenBackend) -> None:
    model = Module()
    model.linear, model.norm = Linear(3, 2, init=Init(0)), LayerNorm(2, init=Init(0))
    model.linear.weight.trainable = True
    model.norm.scale.trainable = False
    matrices, vectors = decay_groups(model.named_parameters(), 0.1)
    assert [name for name, _ in matrices.parameters] == ["linear.weight"]
    assert matrices.weight_decay == 0.1
    assert [name for name, _ in vectors.parameters] == ["linear.bias", "norm.bias"]  # the frozen scale is left out
    assert vectors.weight_decay == 0.0


@pytest.mark.parametrize("page", [1, 2, 3, 34, 35, 36, 4096])
def test_pages_change_nothing_in_the_results(backend: OpenBackend, page: int) -> None:
    whole, paged = parameters(), parameters()
    one, many = Adam(whole.items()), Adam(paged.items(), page_elements=page)
    for t in range(1, 4):
        gradients = draw(t, scale=0.01)  # a norm below the limit: no clip factor to differ in the last bit
        give(whole, gradients), give(paged, gradients)
        one.step(), many.step()
    for name in SHAPES:
        np.testing.assert_allclose(paged[name].numpy(), whole[name].numpy(), rtol=1e-6, atol=1e-8)
    for name, value in one.state_dict().items():
        np.testing.assert_allclose(many.state_dict()[name], value, rtol=1e-6, atol=1e-12)


def test_gradients_of_1e30_are_clipped_without_overflow(backend: OpenBackend) -> None:
    p = Parameter(np.zeros(4, np.float32))
    adam = Adam([("p", p)], lr=0.1, max_norm=1.0)
    p.grad = tensor([1e30, -1e30, 1e30, -1e30])
    stats = adam.step()
    assert stats.gradient_norm == pytest.approx(2e30, rel=1e-5)
    assert stats.clip_scale == pytest.approx(5e-31, rel=1e-5)
    np.testing.assert_allclose(adam.state_dict()["first.p"], [0.05, -0.05, 0.05, -0.05], rtol=1e-5)
    np.testing.assert_allclose(p.numpy(), [-0.1, 0.1, -0.1, 0.1], rtol=1e-4)


@pytest.mark.parametrize("value", [0.0, 1e-30])
def test_vanishing_gradients_do_not_divide_by_zero(backend: OpenBackend, value: float) -> None:
    p = Parameter(np.ones(3, np.float32))
    adam = Adam([("p", p)], lr=0.1)
    p.grad = tensor([value] * 3)
    stats = adam.step()
    assert stats.clip_scale == 1.0
    assert stats.gradient_norm == pytest.approx(value * math.sqrt(3), rel=1e-5, abs=1e-33)
    assert np.isfinite(p.numpy()).all()
    np.testing.assert_allclose(p.numpy(), 1.0, atol=1e-6)


@pytest.mark.parametrize("page", [None, 4])
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_one_bad_value_in_the_last_gradient_leaves_everything_bit_equal(
    backend: OpenBackend, page: int | None, bad: float
) -> None:
    params = {**parameters(), "last": Parameter(np.ones((3, 3), np.float32))}
    adam = Adam(params.items(), page_elements=page)
    give(params, {**draw(1), "last": np.ones((3, 3), np.float32)})
    adam.step()
    before = snapshot(params, adam)
    spoiled = np.ones((3, 3), np.float32)
    spoiled[2, 2] = bad
    give(params, {**draw(2), "last": spoiled})
    with pytest.raises(NonFiniteError, match=r"step 2: the gradient of 'last' has 1 of 9 values.*nothing was changed"):
        adam.step()
    assert snapshot(params, adam) == before
    assert all(p.grad is not None for p in params.values())
    give(params, {**draw(2), "last": np.ones((3, 3), np.float32)})
    assert adam.step().step == 2


def test_the_first_bad_gradient_is_the_one_named(plain: OpenBackend) -> None:
    params = parameters()
    adam = Adam(params.items())
    spoiled = {**draw(1), "weight": np.full((4, 5, 3), np.nan, np.float32), "bias": np.full(9, np.inf, np.float32)}
    give(params, spoiled)
    with pytest.raises(NonFiniteError, match=r"'weight' has 60 of 60"):
        adam.step()


def test_an_update_that_overflows_is_refused_too(backend: OpenBackend) -> None:
    p = Parameter(np.ones(2, np.float32))
    adam = Adam([("p", p)], max_norm=None)
    p.grad = tensor([1e30, 1.0])  # its square overflows the second moment
    before = snapshot({"p": p}, adam)
    with pytest.raises(NonFiniteError, match=r"the gradients are finite but the update is not"):
        adam.step()
    assert snapshot({"p": p}, adam) == before


class Deleting:
    """An Adam slot that keeps the letter of donation: what was donated is gone, also where nothing changed."""

    def __init__(self, real: Any) -> None:
        self.real = real

    def update(self, params: Any, grads: Any, first: Any, second: Any, /, **options: Any) -> Any:
        made = self.real.update(params, grads, first, second, **options)
        fresh = [tuple(x.copy() for x in made[i]) for i in range(3)]
        if options["donate"]:
            for x in (*params, *first, *second):
                x[...] = np.nan
        return made._replace(params=fresh[0], first=fresh[1], second=fresh[2])


def test_donated_arrays_are_never_read_again_even_after_a_refused_step(plain: OpenBackend, make_backend: Make) -> None:
    with use_backend(make_backend(adam=Deleting(plain.tools.adam))):
        params = parameters()
        adam = Adam(params.items())
        before = snapshot(params, adam)
        give(params, {**draw(1), "gate": np.array(np.nan, np.float32)})
        with pytest.raises(NonFiniteError):
            adam.step()
        assert snapshot(params, adam) == before
        give(params, draw(1))
        adam.step()
        assert all(np.isfinite(p.numpy()).all() for p in params.values())


def test_gradients_may_come_from_backward_directly(backend: OpenBackend) -> None:
    p, q = (Parameter(np.ones(2, np.float32)) for _ in range(2))
    adam = Adam([("p", p)], lr=0.5, eps=1e-12)
    q.grad = p.grad = tensor([9.0, 9.0])
    adam.step(backward((p * 3.0 + q).sum()))
    np.testing.assert_allclose(p.numpy(), 0.5, rtol=1e-5)
    assert p.grad is not None  # not used, not cleared


def test_a_step_makes_recorded_graphs_stale(plain: OpenBackend) -> None:
    p = Parameter(np.ones(2, np.float32))
    adam, loss = Adam([("p", p)]), (p * p).sum()
    loss.backward(retain=True)
    adam.step()
    with pytest.raises(GraphError, match="changed after the forward"):
        loss.backward()


@pytest.mark.parametrize("source", [None, 5])
@pytest.mark.parametrize("target", [None, 5, 4096])
def test_state_makes_a_round_trip_between_any_pagings(
    backend: OpenBackend, source: int | None, target: int | None
) -> None:
    first, second = parameters(), parameters()
    one = Adam(first.items(), page_elements=source)
    give(first, draw(1))
    one.step()
    state = {name: value.copy() for name, value in one.state_dict().items()}
    assert list(state) == [f"{kind}.{name}" for kind in ("first", "second") for name in SHAPES]
    assert {name: value.shape for name, value in state.items()} == {
        f"{kind}.{name}": shape for kind in ("first", "second") for name, shape in SHAPES.items()
    }
    two = Adam(second.items(), page_elements=target)
    for name, p in second.items():
        p.assign(tensor(first[name].numpy()).value)
    two.load_state_dict(state, steps=one.steps)
    assert {n: v.tobytes() for n, v in two.state_dict().items()} == {n: v.tobytes() for n, v in state.items()}
    for value in state.values():
        value[...] = 99  # a copy was taken
    give(first, draw(2)), give(second, draw(2))
    one.step(), two.step()
    for name in SHAPES:
        np.testing.assert_allclose(second[name].numpy(), first[name].numpy(), rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        (lambda s: s.pop("first.gate"), ConfigError, r"missing \['first\.gate'\]"),
        (lambda s: s.update(third=np.ones(1)), ConfigError, r"unknown \['third'\]"),
        (
            lambda s: s.update({"second.bias": np.ones(8)}),
            ShapeError,
            r"'second\.bias' has shape \(8,\); wanted \(9,\)",
        ),
        (lambda s: s.update({"first.bias": np.ones(9, bool)}), DTypeError, r"'first\.bias' got NumPy dtype bool"),
    ],
)
def test_state_that_does_not_fit_changes_nothing(
    plain: OpenBackend, change: Any, error: type[Exception], message: str
) -> None:
    params = parameters()
    adam = Adam(params.items())
    give(params, draw(1))
    adam.step()
    before, state = snapshot(params, adam), {n: np.zeros_like(v) for n, v in adam.state_dict().items()}
    change(state)
    with pytest.raises(error, match=message):
        adam.load_state_dict(state, steps=3)
    assert snapshot(params, adam) == before


def test_a_negative_step_count_is_refused(plain: OpenBackend) -> None:
    adam = Adam(parameters().items())
    with pytest.raises(ConfigError, match="-1 steps"):
        adam.load_state_dict(adam.state_dict(), steps=-1)


def pair(name: str = "p", **options: Any) -> tuple[str, Parameter]:
    return name, Parameter(np.ones(2, np.float32), **options)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Adam([]), "no parameters"),
        (lambda: Adam([pair("")]), "empty name"),
        (lambda: Adam([pair("a"), pair("a")]), "twice: a"),
        (lambda: Adam([("a", p := pair()[1]), ("b", p)]), "one parameter under two names"),
        (lambda: Adam([pair()[1]]), r"got Parameter\(shape=\(2,\).*wanted \(name, Parameter\).*named_parameters"),
        (lambda: Adam([("a", tensor([1.0]))]), r"Tensor\(shape.*wanted \(name, Parameter\)"),
        (lambda: Adam([ParameterGroup(parameters=(pair()[1],))]), r"wanted \(name, Parameter\)"),
        (lambda: Adam([ParameterGroup(parameters=(pair(),)), pair("b")]), "not both"),
        (lambda: Adam([pair(trainable=False)]), "'p' is frozen"),
        (lambda: Adam([("p", Parameter(np.ones((2, 0), np.float32)))]), r"\(2, 0\): nothing to learn"),
        (lambda: Adam([pair()], lr=-1.0), "lr -1.0"),
        (lambda: Adam([pair()], lr=math.nan), "lr nan"),
        (lambda: Adam([pair()], betas=(1.0, 0.9)), "beta1 1.0"),
        (lambda: Adam([pair()], betas=(0.9, -0.1)), "beta2 -0.1"),
        (lambda: Adam([pair()], eps=0.0), "eps 0.0"),
        (lambda: Adam([pair()], max_norm=0.0), "max_norm 0.0"),
        (lambda: Adam([pair()], page_elements=0), "page_elements 0"),
        (lambda: Adam([ParameterGroup(parameters=(pair(),), weight_decay=-0.1)]), "weight_decay -0.1"),
        (lambda: Adam([ParameterGroup(parameters=(pair(),), weight_decay=math.inf)]), "weight_decay inf"),
    ],
)
def test_impossible_optimizers_are_refused(plain: OpenBackend, make: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make()


def test_parameters_must_share_a_backend_and_stay_there(plain: OpenBackend, make_backend: Make) -> None:
    other = make_backend(name="other")
    with pytest.raises(BackendMismatch, match=r"'b' is on other and 'a' on plain"):
        Adam([pair("a"), pair("b", backend=other)])
    model = Module()
    model.layer = Linear(2, 2, init=Init(0))
    adam = Adam(model.named_parameters())
    model.to(other)
    with pytest.raises(BackendMismatch, match=r"'layer\.weight' moved to other.*make a new optimizer"):
        adam.step()


def broken_gradient(p: Parameter, make: Make) -> list[tuple[Tensor | None, type[Exception], str]]:
    return [
        (None, GraphError, "'a' has no gradient"),
        (tensor([1.0]), ShapeError, r"the gradient of 'a' is Tensor\(shape=\(1,\).*wanted \(2,\), float32"),
        (tensor(np.ones(2)), ShapeError, r"dtype=float64.*wanted \(2,\), float32"),
        (tensor([1.0, 1.0], backend=make(name="other")), BackendMismatch, "the gradient of 'a' is on other"),
    ]


@pytest.mark.parametrize("which", range(4))
def test_a_gradient_that_does_not_fit_changes_nothing(plain: OpenBackend, make_backend: Make, which: int) -> None:
    (name, p), other = pair("a"), pair("b")
    adam = Adam([other, (name, p)])
    other[1].grad = tensor([1.0, 1.0])
    p.grad, error, message = broken_gradient(p, make_backend)[which]
    before = snapshot({"a": p, "b": other[1]}, adam)
    with pytest.raises(error, match=message):
        adam.step()
    assert snapshot({"a": p, "b": other[1]}, adam) == before
    assert other[1].grad is not None


@pytest.mark.parametrize("rate", [-1.0, math.nan, math.inf])
def test_an_impossible_rate_changes_nothing(plain: OpenBackend, rate: float) -> None:
    name, p = pair()
    adam = Adam([(name, p)])
    p.grad = tensor([1.0, 1.0])
    with pytest.raises(ConfigError, match="learning rate"):
        adam.step(lr=rate)
    assert (adam.steps, p.numpy().tolist()) == (0, [1, 1])


def test_gradients_that_miss_a_parameter_are_refused(plain: OpenBackend) -> None:
    name, p = pair()
    found = backward((pair()[1] * 2.0).sum())
    assert isinstance(found, Gradients)
    with pytest.raises(GraphError, match="'p' has no gradient"):
        Adam([(name, p)]).step(found)
